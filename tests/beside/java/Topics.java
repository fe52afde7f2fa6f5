import java.util.*;
import java.util.concurrent.*;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.MultiTopicsConsumerImpl;

/** Topics: patterns, several at once, terminated, deleted, non-persistent, created on demand, looked up. */
class Topics extends Checks {
  static void add() {
    patterns();
    several();
    ends();
    nonPersistent();
    creation();
  }

  static ConsumerBuilder<byte[]> pattern(String text) {
    return client().newConsumer().topicsPattern(Pattern.compile(text)).subscriptionName("s").patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS);
  }

  static TreeSet<String> topics(Consumer<byte[]> c, Seen s) {
    var found = new TreeSet<String>();
    for (String each : ((MultiTopicsConsumerImpl<byte[]>) c).getPartitions()) found.add(each.replace(s.topic, "T").replace("non-persistent://public/default/" + s.short_, "N"));
    return found;
  }

  static void patterns() {
    for (var mode : RegexSubscriptionMode.values())
      checks.put("pattern/" + mode, s -> {
        String other = "non-persistent://public/default/" + s.short_;
        unbatched(s.topic + "-a").create();
        unbatched(other + "-b").create();
        unbatched(s.topic + "x").create();
        var c = pattern("public/default/" + s.short_ + "-.*").subscriptionTopicsMode(mode).subscribe();
        s.is("topics", topics(c, s));
      });
    checks.put("pattern/appears", s -> {
      unbatched(s.topic + "-a").create().send("a".getBytes());
      var c = pattern("persistent://public/default/" + s.short_ + "-.*").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
      s.is("first", received(c, 1));
      unbatched(s.topic + "-b").create().send("b".getBytes());
      unbatched(s.topic + "c").create().send("no".getBytes());
      s.is("second", received(c, 1));
      s.is("topics", topics(c, s));
    });
    checks.put("pattern/appears-partitioned", s -> {
      var c = pattern("persistent://public/default/" + s.short_ + "-.*").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
      s.is("before", topics(c, s));
      admin.topics().createPartitionedTopic(s.topic + "-p", 2);
      s.is("appears", until(() -> topics(c, s).size() == 2));
      send(unbatched(s.topic + "-p").create(), numbered(0, 4));
      s.is("got", new TreeSet<>(received(c, 4)));
    });
    checks.put("pattern/vanishes", s -> {
      unbatched(s.topic + "-a").create().close();
      unbatched(s.topic + "-b").create().close();
      var c = pattern("persistent://public/default/" + s.short_ + "-.*").subscribe();
      s.is("before", topics(c, s));
      admin.topics().delete(s.topic + "-b", true);
      s.is("vanishes", until(() -> topics(c, s).size() == 1));
      s.is("after", topics(c, s));
    });
    checks.put("pattern/unsubscribe", s -> {
      unbatched(s.topic + "-a").create();
      unbatched(s.topic + "-b").create();
      var c = pattern("persistent://public/default/" + s.short_ + "-.*").subscribe();
      c.unsubscribe();
      s.is("left", admin.topics().getSubscriptions(s.topic + "-a") + " " + admin.topics().getSubscriptions(s.topic + "-b"));
      s.gets("receive", c::receive);
    });
    checks.put("pattern/none", s -> {
      var c = pattern("persistent://public/default/" + s.short_ + "-.*").subscribe();
      s.is("connected", c.isConnected() + " " + none(c));
      s.gets("last", c::getLastMessageIds);
    });
    checks.put("pattern/odd", s -> {
      s.gets("namespace", () -> pattern("persistent://public/none-" + RUN + "/.*").subscribe().isConnected());
      s.gets("with topics", () -> pattern("persistent://public/default/x.*").topic(s.topic).subscribe());
      s.gets("other namespace in pattern", () -> pattern("persistent://public/.*/x").subscribe());
      unbatched(s.topic + "-1").create();
      s.is("alternatives", topics(pattern("persistent://public/default/" + s.short_ + "-(1|2)").subscribe(), s));
      s.is("lookahead", topics(pattern("persistent://public/default/(?!z)" + s.short_ + "-\\d").subscriptionName("t").subscribe(), s));
    });
    checks.put("pattern/topics-of-namespace", s -> {
      String ns = s.namespace();
      unbatched("persistent://" + ns + "/a").create();
      unbatched("non-persistent://" + ns + "/b").create();
      admin.topics().createPartitionedTopic("persistent://" + ns + "/c", 2);
      s.is("persistent", new TreeSet<>(admin.topics().getList(ns, org.apache.pulsar.common.naming.TopicDomain.persistent)));
      s.is("all", new TreeSet<>(admin.topics().getList(ns)));
      s.is("partitioned", admin.topics().getPartitionedTopicList(ns));
      s.is("of namespace", new TreeSet<>(admin.namespaces().getTopics(ns)));
    });
  }

  static void several() {
    checks.put("multi/receive", s -> {
      var c = client().newConsumer().topics(List.of(s.topic + "a", s.topic + "b")).subscriptionName("s").subscribe();
      send(s.topic + "a", 2);
      send(s.topic + "b", 2);
      var found = new TreeSet<String>();
      for (var m : taken(c, 4)) { found.add(m.getTopicName().replace(s.topic, "") + text(m)); c.acknowledge(m); }
      s.is("found", found);
      s.is("topic", c.getTopic().startsWith("MultiTopicsConsumer-"));
      s.is("last", c.getLastMessageIds().size());
      s.gets("old last", () -> c.getLastMessageId().getClass().getSimpleName());
      c.unsubscribe();
      s.is("left", admin.topics().getSubscriptions(s.topic + "a"));
    });
    checks.put("multi/refused", s -> {
      s.gets("invalid", () -> client().newConsumer().topics(List.of(s.topic, "a/b")).subscriptionName("s").subscribe());
      s.gets("twice", () -> client().newConsumer().topics(List.of(s.topic, s.topic)).subscriptionName("s").subscribe().isConnected());
      s.gets("empty", () -> client().newConsumer().topics(List.of()).subscriptionName("s").subscribe());
      s.gets("one missing namespace", () -> client().newConsumer().topics(List.of(s.topic + "a", "public/none-" + RUN + "/t")).subscriptionName("s").subscribe());
    });
    checks.put("multi/one-refuses", s -> {
      consumer(s.topic + "b").subscribe();
      s.gets("busy", () -> client().newConsumer().topics(List.of(s.topic + "a", s.topic + "b")).subscriptionName("s").subscribe());
      s.gets("left", () -> admin.topics().getStats(s.topic + "a").getSubscriptions().get("s").getConsumers().size());
    });
    checks.put("multi/namespaces", s -> {
      String other = "persistent://" + s.namespace() + "/t";
      var c = client().newConsumer().topics(List.of(s.topic, other)).subscriptionName("s").subscribe();
      send(other, 1);
      s.is("got", received(c, 1));
    });
    checks.put("multi/redeliver", s -> {
      var c = client().newConsumer().topics(List.of(s.topic + "a", s.topic + "b")).subscriptionName("s").subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
      send(s.topic + "a", 1);
      send(s.topic + "b", 1);
      for (var m : taken(c, 2)) c.negativeAcknowledge(m);
      s.is("counts", taken(c, 2).stream().map(Message::getRedeliveryCount).toList());
      c.redeliverUnacknowledgedMessages();
      s.is("again", taken(c, 2).size());
    });
    checks.put("multi/partitioned-consumer", s -> {
      admin.topics().createPartitionedTopic(s.topic, 3);
      var c = consumer(s.topic).subscribe();
      send(unbatched(s.topic).create(), numbered(0, 9));
      s.is("got", new TreeSet<>(received(c, 9)));
      s.is("topic", c.getTopic());
      s.is("stats", admin.topics().getPartitionedStats(s.topic, true).getSubscriptions().get("s").getConsumers().size() + " " + admin.topics().getPartitionedStats(s.topic, true).getPartitions().size());
      s.gets("cumulative", () -> { send(unbatched(s.topic).create(), numbered(0, 3)); c.acknowledgeCumulative(taken(c, 3).get(2)); return "ok"; });
    });
  }

  static void ends() {
    checks.put("terminate/publish", s -> {
      var p = unbatched(s.topic).create();
      p.send("m0".getBytes());
      s.gets("terminate", () -> at(admin.topics().terminateTopic(s.topic)));
      s.does("send", () -> p.send("m1".getBytes()));
      s.gets("producer", () -> unbatched(s.topic).create());
      s.gets("again", () -> at(admin.topics().terminateTopic(s.topic)));
      s.is("connected", until(() -> !p.isConnected()));
    });
    checks.put("terminate/consume", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 2);
      admin.topics().terminateTopic(s.topic);
      s.is("reached", c.hasReachedEndOfTopic());
      s.is("got", received(c, 2));
      s.is("reached", until(c::hasReachedEndOfTopic));
      s.is("late", rest(consumer(s.topic).subscriptionName("t").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()));
    });
    checks.put("terminate/others", s -> {
      s.gets("missing", () -> admin.topics().terminateTopic(s.topic));
      admin.topics().createPartitionedTopic(s.topic + "p", 2);
      s.gets("partitioned", () -> admin.topics().terminateTopic(s.topic + "p"));
      s.gets("as partitioned", () -> admin.topics().terminatePartitionedTopic(s.topic + "p").size());
      s.gets("non-persistent", () -> { client().newProducer().topic("non-persistent://public/default/" + s.short_).create(); return admin.topics().terminateTopic("non-persistent://public/default/" + s.short_); });
    });
    checks.put("delete/active", s -> {
      var c = consumer(s.topic).subscribe();
      s.does("consumer", () -> admin.topics().delete(s.topic));
      c.close();
      s.does("subscription", () -> admin.topics().delete(s.topic));
      s.does("again", () -> admin.topics().delete(s.topic));
      var p = unbatched(s.topic + "2").create();
      s.does("producer", () -> admin.topics().delete(s.topic + "2"));
      p.close();
      s.does("missing", () -> admin.topics().delete(s.topic + "3"));
    });
    checks.put("delete/forced", s -> {
      var p = unbatched(s.topic).create();
      var c = consumer(s.topic).subscribe();
      p.send("m0".getBytes());
      s.does("forced", () -> admin.topics().delete(s.topic, true));
      s.does("send", () -> p.send("m1".getBytes()));
      s.is("got", next(c));
    });
    checks.put("delete/forced-auto-creation-off", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.topics().createNonPartitionedTopic(topic);
      var p = unbatched(topic).sendTimeout(4, TimeUnit.SECONDS).create();
      admin.namespaces().setAutoTopicCreation(ns, org.apache.pulsar.common.policies.data.AutoTopicCreationOverride.builder().allowAutoTopicCreation(false).build());
      s.does("forced", () -> admin.topics().delete(topic, true));
      s.does("send", () -> { try { p.send("m1".getBytes()); } catch (PulsarClientException e) { throw new IllegalStateException(e.getClass().getSimpleName()); } });
    });
    checks.put("delete/namespace", s -> {
      String ns = s.namespace();
      admin.topics().createNonPartitionedTopic("persistent://" + ns + "/t");
      s.does("not empty", () -> admin.namespaces().deleteNamespace(ns));
      s.does("forced", () -> admin.namespaces().deleteNamespace(ns, true));
      admin.topics().delete("persistent://" + ns + "/t");
      s.does("empty", () -> admin.namespaces().deleteNamespace(ns));
      s.gets("producer", () -> unbatched("persistent://" + ns + "/t").create());
    });
    checks.put("unload/clients", s -> {
      var p = unbatched(s.topic).create();
      var c = shared(s.topic).subscribe();
      send(p, numbered(0, 3));
      var got = taken(c, 3);
      c.acknowledge(got.get(1));
      until(() -> backlog(s.topic) == 2);
      admin.topics().unload(s.topic);
      s.is("again", rest(c));
      s.does("send", () -> p.send("x".getBytes()));
    });
  }

  static void nonPersistent() {
    checks.put("non-persistent/consume", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      var p = unbatched(topic).create();
      s.is("lost", at(p.send("lost".getBytes())));
      var c = consumer(topic).subscribe();
      s.is("id", at(p.send("m0".getBytes())));
      var m = next(c);
      s.is("got", text(m) + " " + at(m.getMessageId()));
      s.does("acknowledge", () -> c.acknowledge(m));
      s.does("cumulative", () -> c.acknowledgeCumulative(m));
      c.redeliverUnacknowledgedMessages();
      s.is("none", none(c));
    });
    checks.put("non-persistent/calls", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      var c = consumer(topic).subscribe();
      s.does("seek", () -> c.seek(MessageId.earliest));
      s.does("seek time", () -> c.seek(0));
      s.gets("last", () -> c.getLastMessageIds().stream().map(Checks::at).toList());
      s.gets("reader", () -> client().newReader().topic(topic).startMessageId(MessageId.earliest).create().hasMessageAvailable());
      s.does("unsubscribe", c::unsubscribe);
    });
    for (var type : SubscriptionType.values())
      checks.put("non-persistent/" + type, s -> {
        String topic = "non-persistent://public/default/" + s.short_;
        var a = consumer(topic, type).consumerName("a").subscribe();
        if (type != SubscriptionType.Exclusive) consumer(topic, type).consumerName("b").subscribe();
        else s.gets("second", () -> consumer(topic, type).subscribe());
        var p = unbatched(topic).create();
        for (int i = 0; i < 8; i++) p.newMessage().key("key" + i).value(("m" + i).getBytes()).send();
        s.is("a", rest(a));
      });
    checks.put("non-persistent/partitioned", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      admin.topics().createPartitionedTopic(topic, 2);
      var c = consumer(topic).subscribe();
      send(unbatched(topic).create(), numbered(0, 4));
      s.is("got", new TreeSet<>(received(c, 4)));
      s.gets("stats", () -> admin.topics().getPartitionedStats(topic, true).getPartitions().size());
    });
    checks.put("non-persistent/queue-full", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      var c = consumer(topic).receiverQueueSize(2).subscribe();
      var p = unbatched(topic).create();
      for (var each : numbered(0, 6)) p.send(each.getBytes());
      s.is("got", rest(c));
    });
    checks.put("non-persistent/delayed", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      var c = shared(topic).subscribe();
      unbatched(topic).create().newMessage().value("late".getBytes()).deliverAfter(1, TimeUnit.HOURS).send();
      s.is("got", next(c));
    });
    checks.put("non-persistent/durable", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      var p = unbatched(topic).create();
      consumer(topic).subscribe().close();
      p.send("lost".getBytes());
      s.is("subscriptions", admin.topics().getSubscriptions(topic));
      s.is("got", none(consumer(topic).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()));
    });
  }

  static void creation() {
    checks.put("creation/off", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setAutoTopicCreation(ns, org.apache.pulsar.common.policies.data.AutoTopicCreationOverride.builder().allowAutoTopicCreation(false).build());
      s.gets("producer", () -> unbatched(topic).create());
      s.gets("consumer", () -> consumer(topic).subscribe());
      s.gets("reader", () -> client().newReader().topic(topic).startMessageId(MessageId.earliest).create());
      s.gets("non-persistent", () -> unbatched("non-" + topic).create());
      admin.topics().createNonPartitionedTopic(topic);
      s.gets("created", () -> unbatched(topic).create().isConnected());
    });
    checks.put("creation/partitioned", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setAutoTopicCreation(ns, org.apache.pulsar.common.policies.data.AutoTopicCreationOverride.builder().allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(3).build());
      s.gets("producer", () -> unbatched(topic).create().getNumOfPartitions());
      s.is("partitions", admin.topics().getPartitionedTopicMetadata(topic).partitions);
      s.does("too many", () -> admin.namespaces().setAutoTopicCreation(ns, org.apache.pulsar.common.policies.data.AutoTopicCreationOverride.builder().allowAutoTopicCreation(true).topicType("partitioned").build()));
    });
    checks.put("creation/subscriptions-off", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setAutoSubscriptionCreation(ns, org.apache.pulsar.common.policies.data.AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build());
      unbatched(topic).create();
      s.gets("consumer", () -> consumer(topic).subscribe());
      s.gets("reader", () -> client().newReader().topic(topic).startMessageId(MessageId.earliest).create().isConnected());
      s.gets("non-durable", () -> consumer(topic).subscriptionMode(SubscriptionMode.NonDurable).subscribe().isConnected());
      admin.topics().createSubscription(topic, "made", MessageId.latest);
      s.gets("created", () -> consumer(topic).subscriptionName("made").subscribe().isConnected());
    });
    checks.put("lookup/places", s -> {
      unbatched(s.topic).create();
      s.gets("topic", () -> admin.lookups().lookupTopic(s.topic));
      s.gets("bundle", () -> admin.lookups().getBundleRange(s.topic).matches("0x[0-9a-f]{8}_0x[0-9a-f]{8}"));
      s.gets("namespace", () -> admin.lookups().lookupTopic("persistent://public/none-" + RUN + "/t"));
      s.gets("partitioned", () -> { admin.topics().createPartitionedTopic(s.topic + "p", 2); return admin.lookups().lookupPartitionedTopic(s.topic + "p").size(); });
    });
    checks.put("lookup/missing", s -> {
      s.gets("tenant", () -> client().newProducer().topic("persistent://none-" + RUN + "/x/t").create());
      s.gets("namespace", () -> client().newProducer().topic("persistent://public/none-" + RUN + "/t").create());
      s.gets("consumer", () -> consumer("persistent://public/none-" + RUN + "/t").subscribe());
      s.gets("v1", () -> client().newProducer().topic("persistent://public/standalone/none-" + RUN + "/t").create());
    });
  }
}
