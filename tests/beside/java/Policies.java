import java.util.*;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.common.policies.data.*;

/** Policies of namespaces and topics, as clients feel them. */
class Policies extends Checks {
  static void add() {
    numbers();
    quotas();
    rates();
  }

  interface Set_ { void run(String target) throws Exception; }

  /** Set a policy of a topic, which a broker may learn a moment later, and wait for `seen`. */
  static void set(Seen s, Set_ call, Callable<Boolean> seen) throws Exception {
    call.run(s.topic);
    until(seen);
    Thread.sleep(300);
  }

  static void numbers() {
    checks.put("policy/max-producers", s -> {
      unbatched(s.topic).create();
      set(s, t -> admin.topicPolicies().setMaxProducers(t, 1), () -> Objects.equals(admin.topicPolicies().getMaxProducers(s.topic), 1));
      s.gets("second", () -> unbatched(s.topic).create());
      s.does("negative", () -> admin.topicPolicies().setMaxProducers(s.topic, -1));
      admin.topicPolicies().removeMaxProducers(s.topic);
      until(() -> admin.topicPolicies().getMaxProducers(s.topic) == null);
      s.gets("removed", () -> unbatched(s.topic).create().isConnected());
    });
    checks.put("policy/max-producers-namespace", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setMaxProducersPerTopic(ns, 1);
      unbatched(topic).create();
      s.gets("second", () -> unbatched(topic).create());
    });
    checks.put("policy/max-consumers", s -> {
      shared(s.topic).subscribe();
      set(s, t -> admin.topicPolicies().setMaxConsumers(t, 1), () -> Objects.equals(admin.topicPolicies().getMaxConsumers(s.topic), 1));
      s.gets("second", () -> shared(s.topic).subscribe());
      s.gets("other subscription", () -> shared(s.topic).subscriptionName("t").subscribe());
    });
    checks.put("policy/max-consumers-subscription", s -> {
      shared(s.topic).subscribe();
      set(s, t -> admin.topicPolicies().setMaxConsumersPerSubscription(t, 1), () -> Objects.equals(admin.topicPolicies().getMaxConsumersPerSubscription(s.topic), 1));
      s.gets("second", () -> shared(s.topic).subscribe());
      s.gets("other subscription", () -> shared(s.topic).subscriptionName("t").subscribe().isConnected());
    });
    checks.put("policy/max-subscriptions", s -> {
      shared(s.topic).subscribe();
      set(s, t -> admin.topicPolicies().setMaxSubscriptionsPerTopic(t, 1), () -> Objects.equals(admin.topicPolicies().getMaxSubscriptionsPerTopic(s.topic), 1));
      s.gets("second", () -> shared(s.topic).subscriptionName("t").subscribe());
      s.gets("same", () -> shared(s.topic).subscribe().isConnected());
      s.does("by admin", () -> admin.topics().createSubscription(s.topic, "u", MessageId.latest));
      s.gets("reader", () -> client().newReader().topic(s.topic).startMessageId(MessageId.latest).create().isConnected());
    });
    checks.put("policy/max-topics", s -> {
      String ns = s.namespace();
      admin.namespaces().setMaxTopicsPerNamespace(ns, 1);
      unbatched("persistent://" + ns + "/a").create();
      s.gets("second", () -> unbatched("persistent://" + ns + "/b").create());
      s.does("by admin", () -> admin.topics().createNonPartitionedTopic("persistent://" + ns + "/c"));
      s.does("partitioned", () -> admin.topics().createPartitionedTopic("persistent://" + ns + "/d", 2));
      s.does("subscription", () -> admin.topics().createSubscription("persistent://" + ns + "/e", "s", MessageId.latest));
      s.gets("consumer", () -> consumer("persistent://" + ns + "/f").subscribe());
      admin.namespaces().setMaxTopicsPerNamespace(ns, 3);
      s.does("one partition too many", () -> admin.topics().createPartitionedTopic("persistent://" + ns + "/g", 3));
      s.does("as many as there may be", () -> admin.topics().createPartitionedTopic("persistent://" + ns + "/g", 2));
      s.gets("used", () -> unbatched("persistent://" + ns + "/g").create().getNumOfPartitions());
      s.gets("one more", () -> unbatched("persistent://" + ns + "/h").create());
    });
    checks.put("policy/subscription-types", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setSubscriptionTypesEnabled(ns, Set.of(SubscriptionType.Shared));
      for (var type : SubscriptionType.values()) s.does(type + "", () -> consumer(topic, type).subscribe().close());
    });
    checks.put("policy/unacked-consumer", s -> {
      var c = shared(s.topic).isAckReceiptEnabled(true).receiverQueueSize(100).subscribe();
      set(s, t -> admin.topicPolicies().setMaxUnackedMessagesOnConsumer(t, 3), () -> Objects.equals(admin.topicPolicies().getMaxUnackedMessagesOnConsumer(s.topic), 3));
      send(s.topic, 10);
      var got = new ArrayList<Message<byte[]>>();
      for (Message<byte[]> m; (m = c.receive(SILENCE, TimeUnit.MILLISECONDS)) != null; ) got.add(m);
      s.is("blocked after", got.size());
      s.is("stats", admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers().get(0).isBlockedConsumerOnUnackedMsgs());
      for (var each : got) { c.acknowledge(each); Thread.sleep(200); }
      s.is("then", rest(c).size());
    });
    checks.put("policy/unacked-subscription", s -> {
      var c = shared(s.topic).receiverQueueSize(100).subscribe();
      set(s, t -> admin.topicPolicies().setMaxUnackedMessagesOnSubscription(t, 4), () -> Objects.equals(admin.topicPolicies().getMaxUnackedMessagesOnSubscription(s.topic), 4));
      for (var each : numbered(0, 10)) { send(s.topic, 1); Thread.sleep(40); }
      s.is("blocked after", rest(c).size());
      s.is("stats", admin.topics().getStats(s.topic).getSubscriptions().get("s").isBlockedSubscriptionOnUnackedMsgs());
    });
    checks.put("policy/retention", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setRetention(ns, new RetentionPolicies(-1, -1));
      var c = consumer(topic).subscribe();
      send(topic, 3);
      received(c, 3);
      admin.topics().unload(topic);
      s.is("kept", read(client().newReader().topic(topic).startMessageId(MessageId.earliest).create(), 3));
      s.does("mismatch", () -> admin.namespaces().setRetention(ns, new RetentionPolicies(0, 5)));
      s.does("below quota", () -> {
        admin.namespaces().setBacklogQuota(ns, BacklogQuota.builder().limitSize(100 << 20).retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build());
        admin.namespaces().setRetention(ns, new RetentionPolicies(10, 10));
      });
    });
    checks.put("policy/expire", s -> {
      consumer(s.topic).subscribe().close();
      send(s.topic, 3);
      Thread.sleep(2100);
      send(s.topic, 1);
      s.does("expire", () -> admin.topics().expireMessages(s.topic, "s", 1));
      s.is("left", until(() -> backlog(s.topic) == 1));
      s.does("missing", () -> admin.topics().expireMessages(s.topic, "none", 1));
      s.does("with consumer", () -> { consumer(s.topic).subscribe(); admin.topics().expireMessages(s.topic, "s", 1); });
    });
    checks.put("policy/topic-values", s -> {
      unbatched(s.topic).create();
      s.gets("retention", () -> admin.topicPolicies().getRetention(s.topic));
      s.gets("ttl", () -> admin.topicPolicies().getMessageTTL(s.topic));
      set(s, t -> admin.topicPolicies().setMessageTTL(t, 100), () -> Objects.equals(admin.topicPolicies().getMessageTTL(s.topic), 100));
      s.gets("ttl set", () -> admin.topicPolicies().getMessageTTL(s.topic));
      s.gets("ttl applied", () -> admin.topicPolicies().getMessageTTL(s.topic, true));
      s.does("ttl negative", () -> admin.topicPolicies().setMessageTTL(s.topic, -5));
      s.gets("missing topic", () -> admin.topicPolicies().getMessageTTL("persistent://public/default/none-" + RUN));
      s.does("missing topic set", () -> admin.topicPolicies().setMessageTTL("persistent://public/default/none-" + RUN, 5));
    });
  }

  static void quotas() {
    for (var policy : List.of(BacklogQuota.RetentionPolicy.producer_exception, BacklogQuota.RetentionPolicy.producer_request_hold))
      checks.put("quota/" + policy, s -> {
        String ns = s.namespace(), topic = "persistent://" + ns + "/t";
        admin.namespaces().setBacklogQuota(ns, BacklogQuota.builder().limitSize(1000).retentionPolicy(policy).build());
        var c = consumer(topic).subscribe();
        var p = unbatched(topic).sendTimeout(4, TimeUnit.SECONDS).create();
        for (int i = 0; i < 5; i++) p.send(new byte[500]);
        s.is("disconnected", until(() -> admin.topics().getStats(topic).getPublishers().isEmpty()));
        s.gets("second", () -> {
          try { return client().newProducer().topic(topic).create(); } catch (PulsarClientException e) { throw new IllegalStateException(told(e)); }
        });
        s.does("send", () -> { try { p.send("x".getBytes()); } catch (PulsarClientException e) { throw new IllegalStateException(e.getClass().getSimpleName()); } });
        for (int i = 0; i < 5; i++) c.acknowledge(next(c));
        s.is("again", until(() -> { try (var q = unbatched(topic).create()) { return true; } catch (PulsarClientException e) { return false; } }));
      });
    checks.put("quota/eviction", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setBacklogQuota(ns, BacklogQuota.builder().limitSize(2000).retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build());
      consumer(topic).subscribe().close();
      var p = unbatched(topic).create();
      for (int i = 0; i < 10; i++) p.send(new byte[500]);
      s.is("evicted", until(() -> backlog(topic) < 10));
      s.does("send", () -> p.send("x".getBytes()));
    });
    checks.put("quota/values", s -> {
      String ns = s.namespace();
      s.does("age", () -> admin.namespaces().setBacklogQuota(ns, BacklogQuota.builder().limitTime(1).retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build(), BacklogQuota.BacklogQuotaType.message_age));
      s.is("map", new TreeMap<>(admin.namespaces().getBacklogQuotaMap(ns)).keySet());
      s.does("evicting age", () -> admin.namespaces().setBacklogQuota(ns, BacklogQuota.builder().limitTime(1).retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build(), BacklogQuota.BacklogQuotaType.message_age));
      s.does("removed", () -> admin.namespaces().removeBacklogQuota(ns));
      s.does("removed again", () -> admin.namespaces().removeBacklogQuota(ns));
    });
  }

  static void rates() {
    checks.put("rate/dispatch", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setDispatchRate(ns, DispatchRate.builder().dispatchThrottlingRateInMsg(2).dispatchThrottlingRateInByte(-1).ratePeriodInSecond(1).build());
      consumer(topic).subscribe().close();
      send(topic, 8);
      var c = shared(topic).receiverQueueSize(1).subscribe();
      long start = System.nanoTime();
      s.is("got", received(c, 8));
      s.is("slow", (System.nanoTime() - start) / 1_000_000 > 1200);
    });
    checks.put("rate/publish", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setPublishRate(ns, new PublishRate(2, -1));
      var p = unbatched(topic).create();
      long start = System.nanoTime();
      for (var each : numbered(0, 8)) p.send(each.getBytes());
      s.is("slow", (System.nanoTime() - start) / 1_000_000 > 1200);
    });
    checks.put("rate/subscribe", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setSubscribeRate(ns, new SubscribeRate(1, 60));
      shared(topic).consumerName("same").subscribe().close();
      s.gets("second", () -> shared(topic).consumerName("same").subscribe().isConnected());
    });
  }
}
