import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.MessageIdImpl;

/** Subscriptions: types, failover, sticky ranges, positions, properties, seeks, unsubscribing. */
class Subscribing extends Checks {
  static void add() {
    kinds();
    failover();
    keyShared();
    positions();
    seeks();
  }

  static void kinds() {
    checks.put("subscribe/exclusive-twice", s -> {
      consumer(s.topic).consumerName("a").subscribe();
      s.gets("second", () -> consumer(s.topic).consumerName("b").subscribe());
    });
    checks.put("subscribe/other-type", s -> {
      for (var type : SubscriptionType.values())
        for (var other : SubscriptionType.values()) {
          try (var c = consumer(s.topic, type).subscriptionName(type + "-" + other).subscribe()) {
            s.does(type + "-" + other, () -> consumer(s.topic, other).subscriptionName(type + "-" + other).subscribe().close());
          }
        }
    });
    checks.put("subscribe/type-changes", s -> {
      consumer(s.topic).subscribe().close();
      send(s.topic, 2);
      try (var c = shared(s.topic).subscribe()) { s.is("shared", received(c, 1)); }
      try (var c = consumer(s.topic, SubscriptionType.Failover).subscribe()) { s.is("failover", received(c, 1)); }
      s.is("type", admin.topics().getStats(s.topic).getSubscriptions().get("s").getType());
    });
    checks.put("subscribe/shared-priority", s -> {
      var low = shared(s.topic).priorityLevel(1).subscribe();
      var high = shared(s.topic).priorityLevel(0).receiverQueueSize(100).subscribe();
      send(s.topic, 10);
      s.is("high", rest(high).size());
      s.is("low", rest(low).size());
    });
    checks.put("subscribe/shared-each-once", s -> {
      var a = shared(s.topic).subscribe();
      var b = shared(s.topic).subscribe();
      send(s.topic, 20);
      var all = new ArrayList<>(rest(a));
      all.addAll(rest(b));
      s.is("all", all.size() + " " + new HashSet<>(all).size());
    });
    checks.put("subscribe/properties", s -> {
      consumer(s.topic).subscriptionProperties(Map.of("a", "1")).subscribe().close();
      s.is("first", admin.topics().getStats(s.topic).getSubscriptions().get("s").getSubscriptionProperties());
      consumer(s.topic).subscriptionProperties(Map.of("b", "2")).subscribe().close();
      s.is("again", admin.topics().getStats(s.topic).getSubscriptions().get("s").getSubscriptionProperties());
      admin.topics().updateSubscriptionProperties(s.topic, "s", Map.of("c", "3"));
      s.is("updated", admin.topics().getSubscriptionProperties(s.topic, "s"));
      s.gets("missing", () -> admin.topics().getSubscriptionProperties(s.topic, "none"));
    });
    checks.put("subscribe/replicated", s -> {
      consumer(s.topic).replicateSubscriptionState(true).subscribe();
      s.is("replicated", admin.topics().getStats(s.topic).getSubscriptions().get("s").isReplicated());
      consumer(s.topic).subscriptionName("t").subscribe();
      s.is("other", admin.topics().getStats(s.topic).getSubscriptions().get("t").isReplicated());
      s.gets("status", () -> admin.topics().getReplicatedSubscriptionStatus(s.topic, "s"));
    });
    checks.put("subscribe/non-durable", s -> {
      send(s.topic, 3);
      var c = consumer(s.topic).subscriptionMode(SubscriptionMode.NonDurable).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
      s.is("got", received(c, 3));
      s.is("durable", admin.topics().getStats(s.topic).getSubscriptions().get("s").isDurable());
      c.close();
      s.is("gone", until(() -> admin.topics().getSubscriptions(s.topic).isEmpty()));
    });
    checks.put("subscribe/non-durable-latest", s -> {
      send(s.topic, 2);
      var c = consumer(s.topic).subscriptionMode(SubscriptionMode.NonDurable).subscribe();
      s.is("got", rest(c));
      send(s.topic, 1);
      s.is("then", received(c, 1));
    });
    checks.put("subscribe/non-durable-reconnects", s -> {
      var c = consumer(s.topic).subscriptionMode(SubscriptionMode.NonDurable).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
      send(s.topic, 4);
      received(c, 2);
      admin.topics().unload(s.topic);
      s.is("rest", rest(c));
    });
    checks.put("subscribe/durable-by-other-mode", s -> {
      consumer(s.topic).subscribe().close();
      s.gets("non-durable", () -> consumer(s.topic).subscriptionMode(SubscriptionMode.NonDurable).subscribe());
      var c = consumer(s.topic + "2").subscriptionMode(SubscriptionMode.NonDurable).subscribe();
      s.gets("beside", () -> consumer(s.topic + "2").subscriptionMode(SubscriptionMode.Durable).subscribe());
      c.close();
      s.gets("durable", () -> consumer(s.topic + "2").subscribe().isConnected());
    });
    checks.put("subscribe/unsubscribe", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 2);
      c.unsubscribe();
      s.is("subscriptions", admin.topics().getSubscriptions(s.topic));
      s.is("connected", c.isConnected());
      s.is("anew", rest(consumer(s.topic).subscribe()));
    });
    checks.put("subscribe/unsubscribe-shared", s -> {
      var a = shared(s.topic).subscribe();
      var b = shared(s.topic).subscribe();
      s.does("plain", a::unsubscribe);
      s.is("subscriptions", admin.topics().getSubscriptions(s.topic));
      s.is("connected", a.isConnected() + " " + b.isConnected());
    });
    checks.put("subscribe/unsubscribe-forced", s -> {
      var a = shared(s.topic).subscribe();
      var b = shared(s.topic).subscribe();
      s.does("forced", () -> a.unsubscribe(true));
      s.is("first", a.isConnected());
      b.closeAsync();
    });
    checks.put("subscribe/deleted-by-admin", s -> {
      var c = consumer(s.topic).subscribe();
      s.does("plain", () -> admin.topics().deleteSubscription(s.topic, "s"));
      c.close();
      s.does("after", () -> admin.topics().deleteSubscription(s.topic, "s"));
      s.does("again", () -> admin.topics().deleteSubscription(s.topic, "s"));
      s.does("created", () -> admin.topics().createSubscription(s.topic, "t", MessageId.earliest));
      s.does("twice", () -> admin.topics().createSubscription(s.topic, "t", MessageId.earliest));
    });
    checks.put("subscribe/events", s -> {
      List<String> found = synced();
      consumer(s.topic).consumerEventListener(new ConsumerEventListener() {
        @Override public void becameActive(Consumer<?> c, int partition) { found.add("active " + partition); }
        @Override public void becameInactive(Consumer<?> c, int partition) { found.add("inactive " + partition); }
      }).subscribe();
      Thread.sleep(SILENCE / 2);
      s.is("exclusive", found);
    });
  }

  static ConsumerEventListener listening(String name, List<String> found) {
    return new ConsumerEventListener() {
      @Override public void becameActive(Consumer<?> c, int partition) { found.add(name + " active " + partition); }
      @Override public void becameInactive(Consumer<?> c, int partition) { found.add(name + " inactive " + partition); }
    };
  }

  static void failover() {
    checks.put("failover/events", s -> {
      List<String> found = synced();
      var b = consumer(s.topic, SubscriptionType.Failover).consumerName("b").consumerEventListener(listening("b", found)).subscribe();
      until(() -> found.size() == 1);
      var c = consumer(s.topic, SubscriptionType.Failover).consumerName("c").consumerEventListener(listening("c", found)).subscribe();
      until(() -> found.size() == 2);
      b.close();
      until(() -> found.size() == 3);
      Thread.sleep(SILENCE / 3);
      s.is("found", found);
      s.is("active", admin.topics().getStats(s.topic).getSubscriptions().get("s").getActiveConsumerName());
      c.close();
    });
    checks.put("failover/earlier-name", s -> {
      List<String> found = synced();
      consumer(s.topic, SubscriptionType.Failover).consumerName("m").consumerEventListener(listening("m", found)).subscribe();
      until(() -> found.size() == 1);
      consumer(s.topic, SubscriptionType.Failover).consumerName("a").consumerEventListener(listening("a", found)).subscribe();
      Thread.sleep(SILENCE);
      s.is("found", new TreeSet<>(found));
      s.is("active", admin.topics().getStats(s.topic).getSubscriptions().get("s").getActiveConsumerName());
    });
    checks.put("failover/priority", s -> {
      List<String> found = synced();
      consumer(s.topic, SubscriptionType.Failover).consumerName("a").priorityLevel(1).consumerEventListener(listening("a", found)).subscribe();
      until(() -> found.size() == 1);
      consumer(s.topic, SubscriptionType.Failover).consumerName("b").priorityLevel(0).consumerEventListener(listening("b", found)).subscribe();
      until(() -> found.size() == 3);
      s.is("found", new TreeSet<>(found));
      s.is("active", admin.topics().getStats(s.topic).getSubscriptions().get("s").getActiveConsumerName());
    });
    checks.put("failover/take-over", s -> {
      var a = consumer(s.topic, SubscriptionType.Failover).consumerName("a").subscribe();
      var b = consumer(s.topic, SubscriptionType.Failover).consumerName("b").subscribe();
      send(s.topic, 4);
      var got = taken(a, 4);
      s.is("other", none(b));
      a.acknowledge(got.get(0));
      until(() -> backlog(s.topic) == 3);
      a.close();
      var again = taken(b, 3);
      s.is("again", again.stream().map(Checks::text).toList());
      s.is("counts", again.stream().map(Message::getRedeliveryCount).toList());
    });
    checks.put("failover/partitions", s -> {
      admin.topics().createPartitionedTopic(s.topic, 4);
      List<String> found = synced();
      consumer(s.topic, SubscriptionType.Failover).consumerName("a").consumerEventListener(listening("a", found)).subscribe();
      consumer(s.topic, SubscriptionType.Failover).consumerName("b").consumerEventListener(listening("b", found)).subscribe();
      Thread.sleep(2 * SILENCE);
      var active = new ArrayList<String>();
      for (int i = 0; i < 4; i++) active.add(admin.topics().getStats(s.topic + "-partition-" + i).getSubscriptions().get("s").getActiveConsumerName());
      s.is("active", active);
      s.is("events", new TreeSet<>(found));
    });
    checks.put("failover/redelivers-order", s -> {
      var a = consumer(s.topic, SubscriptionType.Failover).subscribe();
      send(s.topic, 4);
      var got = taken(a, 4);
      a.acknowledge(got.get(2));
      a.redeliverUnacknowledgedMessages();
      s.is("again", rest(a));
    });
  }

  static ConsumerBuilder<byte[]> sticky(String topic, Range... ranges) {
    return consumer(topic, SubscriptionType.Key_Shared).keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(ranges));
  }

  static void sendKeyed(String topic, int count, int keys) throws Exception {
    try (var p = unbatched(topic).create()) {
      for (int i = 0; i < count; i++) p.newMessage().key("key" + i % keys).value(("m" + i).getBytes()).send();
    }
  }

  static void keyShared() {
    checks.put("sticky/halves", s -> {
      var a = sticky(s.topic, Range.of(0, 32767)).consumerName("a").subscribe();
      var b = sticky(s.topic, Range.of(32768, 65535)).consumerName("b").subscribe();
      sendKeyed(s.topic, 20, 10);
      s.is("a", rest(a));
      s.is("b", rest(b));
    });
    checks.put("sticky/overlap", s -> {
      sticky(s.topic, Range.of(0, 100), Range.of(200, 300)).subscribe();
      s.gets("overlap", () -> sticky(s.topic, Range.of(50, 150)).subscribe());
      s.gets("within", () -> sticky(s.topic, Range.of(210, 220)).subscribe());
      s.gets("around", () -> sticky(s.topic, Range.of(0, 65535)).subscribe());
      s.gets("same", () -> sticky(s.topic, Range.of(0, 100)).subscribe());
      s.gets("edge", () -> sticky(s.topic, Range.of(300, 400)).subscribe());
      s.gets("beside", () -> sticky(s.topic, Range.of(101, 199)).subscribe().isConnected());
    });
    checks.put("sticky/gap", s -> {
      var a = sticky(s.topic, Range.of(0, 32767)).subscribe();
      sendKeyed(s.topic, 10, 10);
      s.is("a", rest(a));
      s.is("backlog", backlog(s.topic));
      var b = sticky(s.topic, Range.of(32768, 65535)).subscribe();
      s.is("b", rest(b));
    });
    checks.put("sticky/refused", s -> {
      s.gets("none", () -> sticky(s.topic).subscribe());
      s.gets("negative", () -> sticky(s.topic, Range.of(-1, 5)).subscribe());
      s.gets("beyond", () -> sticky(s.topic, Range.of(0, 65536)).subscribe());
      s.gets("turned", () -> sticky(s.topic, Range.of(5, 4)).subscribe());
      s.gets("twice", () -> sticky(s.topic, Range.of(0, 10), Range.of(5, 20)).subscribe());
    });
    checks.put("sticky/beside-auto-split", s -> {
      consumer(s.topic, SubscriptionType.Key_Shared).subscribe();
      s.gets("sticky", () -> sticky(s.topic, Range.of(0, 65535)).subscribe());
      sticky(s.topic + "2", Range.of(0, 65535)).subscribe();
      s.gets("auto", () -> consumer(s.topic + "2", SubscriptionType.Key_Shared).subscribe());
    });
    checks.put("sticky/again-after-close", s -> {
      sticky(s.topic, Range.of(0, 65535)).subscribe().close();
      s.gets("same", () -> sticky(s.topic, Range.of(0, 65535)).subscribe().isConnected());
    });
    checks.put("sticky/key-shared-other-order", s -> {
      consumer(s.topic, SubscriptionType.Key_Shared).keySharedPolicy(KeySharedPolicy.autoSplitHashRange()).subscribe();
      s.gets("out of order", () -> consumer(s.topic, SubscriptionType.Key_Shared).keySharedPolicy(KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true)).subscribe());
    });
    checks.put("sticky/ordering-key", s -> {
      var a = sticky(s.topic, Range.of(0, 32767)).subscribe();
      var b = sticky(s.topic, Range.of(32768, 65535)).subscribe();
      try (var p = unbatched(s.topic).producerName("p").create()) {
        for (int i = 0; i < 8; i++) p.newMessage().key("same").orderingKey(("o" + i).getBytes()).value(("m" + i).getBytes()).send();
        for (int i = 8; i < 10; i++) p.newMessage().value(("m" + i).getBytes()).send();
      }
      s.is("a", rest(a));
      s.is("b", rest(b));
    });
    checks.put("auto-split/by-name", s -> {
      var a = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("a").subscribe();
      var b = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("b").subscribe();
      var c = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("c").subscribe();
      sendKeyed(s.topic, 20, 20);
      s.is("a", rest(a));
      s.is("b", rest(b));
      s.is("c", rest(c));
      for (var each : admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers())
        s.is("ranges " + each.getConsumerName(), each.getKeyHashRanges() == null ? null : each.getKeyHashRanges().size());
      s.is("mode", admin.topics().getStats(s.topic).getSubscriptions().get("s").getKeySharedMode() + " " + admin.topics().getStats(s.topic).getSubscriptions().get("s").isAllowOutOfOrderDelivery());
    });
    checks.put("auto-split/order", s -> {
      var a = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("a").subscribe();
      sendKeyed(s.topic, 12, 6);
      var first = taken(a, 12);
      var b = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("b").subscribe();
      sendKeyed(s.topic, 12, 6);
      s.is("b waits", rest(b));
      s.is("a goes on", rest(a));
      for (var each : first) a.acknowledge(each);
      s.is("b", rest(b));
    });
    checks.put("auto-split/closed", s -> {
      var a = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("a").subscribe();
      var b = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("b").subscribe();
      sendKeyed(s.topic, 12, 6);
      var of = new ArrayList<>(rest(a));
      a.close();
      var found = new ArrayList<>(rest(b));
      s.is("all", found.size());
      Map<String, List<String>> byKey = new TreeMap<>();
      for (String each : found) byKey.computeIfAbsent("key" + Integer.parseInt(each.substring(1)) % 6, k -> new ArrayList<>()).add(each);
      s.is("each key", byKey);
    });
    checks.put("auto-split/out-of-order", s -> {
      var policy = KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true);
      var a = consumer(s.topic, SubscriptionType.Key_Shared).keySharedPolicy(policy).consumerName("a").subscribe();
      sendKeyed(s.topic, 12, 6);
      taken(a, 12);
      var b = consumer(s.topic, SubscriptionType.Key_Shared).keySharedPolicy(policy).consumerName("b").subscribe();
      sendKeyed(s.topic, 12, 6);
      s.is("b", rest(b));
      s.is("a", rest(a));
    });
    checks.put("auto-split/batches", s -> {
      var a = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("a").subscribe();
      var b = consumer(s.topic, SubscriptionType.Key_Shared).consumerName("b").subscribe();
      var p = batched(s.topic).batcherBuilder(BatcherBuilder.KEY_BASED).create();
      for (int i = 0; i < 12; i++) p.newMessage().key("key" + i % 6).value(("m" + i).getBytes()).sendAsync();
      p.flush();
      s.is("a", rest(a).stream().sorted().toList());
      s.is("b", rest(b).stream().sorted().toList());
    });
  }

  static void positions() {
    for (var position : SubscriptionInitialPosition.values())
      checks.put("position/" + position, s -> {
        send(s.topic, 3);
        try (var c = consumer(s.topic).subscriptionInitialPosition(position).subscribe()) { s.is("got", rest(c)); }
        try (var c = consumer(s.topic).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) { s.is("again", rest(c)); }
      });
    checks.put("position/last-ids", s -> {
      var c = consumer(s.topic).subscribe();
      s.is("empty", at(c.getLastMessageIds().get(0)));
      send(s.topic, 2);
      s.is("two", at(c.getLastMessageIds().get(0)));
      send(batched(s.topic).create(), numbered(0, 3));
      s.is("batch", at(c.getLastMessageIds().get(0)));
      s.is("topic", c.getLastMessageIds().get(0).getOwnerTopic());
      s.is("old call", at(c.getLastMessageId()));
      received(c, 5);
      until(() -> backlog(s.topic) == 0);
      s.is("acknowledged", at(c.getLastMessageIds().get(0)));
    });
    checks.put("position/last-ids-partitions", s -> {
      admin.topics().createPartitionedTopic(s.topic, 2);
      var c = consumer(s.topic).subscribe();
      send(unbatched(s.topic).create(), numbered(0, 4));
      s.is("ids", c.getLastMessageIds().stream().map(each -> each.getOwnerTopic().replace(s.topic, "T") + " " + at(each)).sorted().toList());
    });
    checks.put("position/last-ids-trimmed", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 3);
      received(c, 3);
      admin.topics().unload(s.topic);
      s.does("truncate", () -> admin.topics().truncate(s.topic));
      s.is("last", at(c.getLastMessageIds().get(0)));
      s.is("reader", client().newReader().topic(s.topic).startMessageId(MessageId.earliest).create().hasMessageAvailable());
    });
    checks.put("position/reset-by-admin", s -> {
      var ids = send(s.topic, 5);
      for (String name : List.of("a", "b", "c")) consumer(s.topic).subscriptionName(name).subscribe().close();
      s.does("id", () -> admin.topics().resetCursor(s.topic, "a", ids.get(2)));
      s.does("exclusive", () -> admin.topics().resetCursor(s.topic, "b", ids.get(2), true));
      s.does("time", () -> admin.topics().resetCursor(s.topic, "c", 0));
      s.does("missing", () -> admin.topics().resetCursor(s.topic, "none", 0));
      for (String name : List.of("a", "b", "c")) s.is(name, rest(consumer(s.topic).subscriptionName(name).subscribe()));
    });
    checks.put("position/skip-and-peek", s -> {
      consumer(s.topic).subscribe().close();
      send(s.topic, 5);
      s.is("peek", admin.topics().peekMessages(s.topic, "s", 2).stream().map(Checks::text).toList());
      admin.topics().skipMessages(s.topic, "s", 2);
      s.is("left", backlog(s.topic));
      s.does("too many", () -> admin.topics().skipMessages(s.topic, "s", 100));
      s.is("none", backlog(s.topic));
      s.does("all", () -> admin.topics().skipAllMessages(s.topic, "s"));
      s.gets("peek none", () -> admin.topics().peekMessages(s.topic, "s", 1));
    });
  }

  static void seeks() {
    checks.put("seek/id", s -> {
      var c = consumer(s.topic).subscribe();
      var ids = send(s.topic, 5);
      received(c, 5);
      c.seek(ids.get(2));
      s.is("after", rest(c));
      c.seek(MessageId.earliest);
      s.is("earliest", rest(c));
      c.seek(MessageId.latest);
      s.is("latest", rest(c));
      c.seek(ids.get(4));
      s.is("last", rest(c));
    });
    checks.put("seek/inclusive", s -> {
      var c = consumer(s.topic).startMessageIdInclusive().subscribe();
      var ids = send(s.topic, 5);
      received(c, 5);
      c.seek(ids.get(3));
      s.is("from", rest(c));
      c.seek(MessageId.latest);
      s.is("latest", rest(c));
    });
    checks.put("seek/in-batch", s -> {
      for (boolean inclusive : List.of(true, false)) {
        String topic = s.topic + inclusive;
        var builder = consumer(topic);
        var c = (inclusive ? builder.startMessageIdInclusive() : builder).subscribe();
        send(batched(topic).create(), numbered(0, 4));
        var got = taken(c, 4);
        c.seek(got.get(2).getMessageId());
        s.is(inclusive + "", rest(c));
      }
    });
    checks.put("seek/time", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 3);
      Thread.sleep(20);
      long middle = System.currentTimeMillis();
      Thread.sleep(20);
      send(s.topic, 2);
      received(c, 5);
      c.seek(middle);
      s.is("middle", rest(c));
      c.seek(0);
      s.is("zero", rest(c));
      c.seek(System.currentTimeMillis() + 3600000);
      s.is("future", rest(c));
    });
    checks.put("seek/function", s -> {
      admin.topics().createPartitionedTopic(s.topic, 2);
      var c = consumer(s.topic).subscribe();
      send(unbatched(s.topic).create(), numbered(0, 6));
      received(c, 6);
      c.seek(topic -> topic.endsWith("0") ? MessageId.earliest : MessageId.latest);
      s.is("one partition", rest(c).size());
      c.seek(topic -> 0L);
      s.is("time", rest(c).size());
      s.does("wrong", () -> c.seek(topic -> "x"));
      s.does("null", () -> c.seek(topic -> null));
    });
    checks.put("seek/unknown", s -> {
      var c = consumer(s.topic).subscribe();
      var ids = send(s.topic, 3);
      received(c, 3);
      long ledger = ((MessageIdAdv) ids.get(0)).getLedgerId();
      s.does("entry beyond", () -> c.seek(new MessageIdImpl(ledger, 100, -1)));
      s.is("then", rest(c));
      s.does("ledger beyond", () -> c.seek(new MessageIdImpl(ledger + 1000000, 0, -1)));
      s.is("then", rest(c));
      s.does("ledger before", () -> c.seek(new MessageIdImpl(0, 0, -1)));
      s.is("then", rest(c));
    });
    checks.put("seek/multi-topics", s -> {
      var c = client().newConsumer().topics(List.of(s.topic + "a", s.topic + "b")).subscriptionName("s").subscribe();
      send(s.topic + "a", 2);
      var id = send(s.topic + "b", 2).get(0);
      received(c, 4);
      s.does("id", () -> c.seek(id));
      s.does("earliest", () -> c.seek(MessageId.earliest));
      s.is("all", rest(c).size());
      s.does("time", () -> c.seek(0));
      s.is("all", rest(c).size());
    });
    checks.put("seek/shared", s -> {
      var a = shared(s.topic).subscribe();
      var b = shared(s.topic).subscribe();
      send(s.topic, 6);
      s.is("first", rest(a).size() + rest(b).size());
      s.does("seek", () -> a.seek(MessageId.earliest));
      s.is("again", rest(a).size() + rest(b).size());
    });
    checks.put("seek/unacknowledged", s -> {
      var c = shared(s.topic).subscribe();
      var ids = send(s.topic, 4);
      taken(c, 4);
      c.seek(ids.get(1));
      var again = taken(c, 2);
      s.is("again", again.stream().map(each -> text(each) + each.getRedeliveryCount()).toList());
      s.is("backlog", backlog(s.topic));
    });
    checks.put("seek/paused", s -> {
      var c = consumer(s.topic).receiverQueueSize(1).startPaused(true).subscribe();
      send(s.topic, 3);
      c.seek(MessageId.earliest);
      s.is("paused", none(c));
      c.resume();
      s.is("resumed", received(c, 3));
    });
    checks.put("seek/beside-receives", s -> {
      var c = consumer(s.topic).receiverQueueSize(5).subscribe();
      send(s.topic, 30);
      taken(c, 7);
      c.seek(MessageId.earliest);
      s.is("again", received(c, 30).equals(numbered(0, 30)));
    });
  }
}
