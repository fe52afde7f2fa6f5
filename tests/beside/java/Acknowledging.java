import java.util.*;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;
import org.apache.pulsar.client.impl.MessageIdImpl;

/** Acknowledgments, redelivery, retry and dead letter topics, delays. */
class Acknowledging extends Checks {
  static void add() {
    acks();
    redelivery();
    deadLetters();
    delays();
  }

  static void acks() {
    for (var type : SubscriptionType.values())
      checks.put("ack/cumulative-" + type, s -> {
        var c = consumer(s.topic, type).subscribe();
        send(s.topic, 4);
        var got = taken(c, 3);
        s.does("cumulative", () -> c.acknowledgeCumulative(got.get(1)));
        c.close();
        try (var again = consumer(s.topic, type).subscribe()) { s.is("rest", rest(again)); }
      });
    for (boolean receipt : List.of(true, false))
      checks.put("ack/receipt-" + receipt, s -> {
        var c = shared(s.topic).isAckReceiptEnabled(receipt).subscribe();
        send(s.topic, 3);
        var got = taken(c, 3);
        s.gets("one", () -> c.acknowledgeAsync(got.get(0)).get(WAIT, TimeUnit.SECONDS));
        s.gets("again", () -> c.acknowledgeAsync(got.get(0)).get(WAIT, TimeUnit.SECONDS));
        s.does("list", () -> c.acknowledge(List.of(got.get(1).getMessageId(), got.get(2).getMessageId())));
        s.is("backlog", until(() -> backlog(s.topic) == 0));
        s.gets("unknown", () -> c.acknowledgeAsync(new MessageIdImpl(987654321, 5, -1)).get(WAIT, TimeUnit.SECONDS));
      });
    checks.put("ack/cumulative-unknown", s -> {
      var c = consumer(s.topic).isAckReceiptEnabled(true).subscribe();
      send(s.topic, 2);
      s.gets("ahead", () -> c.acknowledgeCumulativeAsync(new MessageIdImpl(987654321, 5, -1)).get(WAIT, TimeUnit.SECONDS));
      s.gets("earliest", () -> c.acknowledgeCumulativeAsync(MessageId.earliest).get(WAIT, TimeUnit.SECONDS));
      s.is("backlog", backlog(s.topic));
      s.is("connected", c.isConnected());
    });
    for (boolean index : List.of(true, false))
      checks.put("ack/batch-index-" + index, s -> {
        var builder = shared(s.topic).enableBatchIndexAcknowledgment(index);
        var c = builder.subscribe();
        send(batched(s.topic).create(), numbered(0, 4));
        var got = taken(c, 4);
        c.acknowledge(got.get(1));
        c.acknowledge(got.get(3));
        c.close();
        try (var again = builder.clone().subscribe()) {
          var left = taken(again, index ? 2 : 4);
          s.is("rest", left.stream().map(Checks::text).toList());
          s.is("counts", left.stream().map(Message::getRedeliveryCount).toList());
          for (var each : left) again.acknowledge(each);
          s.is("backlog", until(() -> backlog(s.topic) == 0));
        }
      });
    for (boolean index : List.of(true, false))
      checks.put("ack/batch-index-cumulative-" + index, s -> {
        var builder = consumer(s.topic).enableBatchIndexAcknowledgment(index);
        var c = builder.subscribe();
        send(batched(s.topic).create(), numbered(0, 2));
        send(batched(s.topic).create(), numbered(2, 6));
        c.acknowledgeCumulative(taken(c, 4).get(3));
        c.close();
        s.is("rest", rest(builder.clone().subscribe()));
      });
    checks.put("ack/batch-index-redelivered", s -> {
      var c = shared(s.topic).enableBatchIndexAcknowledgment(true).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
      send(batched(s.topic).create(), numbered(0, 3));
      var got = taken(c, 3);
      c.acknowledge(got.get(0));
      c.negativeAcknowledge(got.get(1));
      c.negativeAcknowledge(got.get(2));
      s.is("again", rest(c));
    });
    checks.put("ack/other-topic", s -> {
      var c = client().newConsumer().topics(List.of(s.topic + "a", s.topic + "b")).subscriptionName("s").subscribe();
      var id = send(s.topic + "z", 1).get(0);
      s.does("foreign", () -> c.acknowledge(id));
      s.does("cumulative", () -> c.acknowledgeCumulative(id));
    });
    checks.put("ack/grouped", s -> {
      var c = client().newConsumer().topic(s.topic).subscriptionName("s").acknowledgmentGroupTime(10, TimeUnit.MINUTES).maxAcknowledgmentGroupSize(3).subscribe();
      send(s.topic, 4);
      received(c, 2);
      Thread.sleep(SILENCE / 3);
      s.is("before", backlog(s.topic));
      received(c, 2);
      s.is("full", until(() -> backlog(s.topic) == 1));
      c.close();
      s.is("closed", until(() -> backlog(s.topic) == 0));
    });
    checks.put("ack/after-close-of-other", s -> {
      var a = shared(s.topic).consumerName("a").receiverQueueSize(10).subscribe();
      send(s.topic, 4);
      var got = taken(a, 4);
      var b = shared(s.topic).consumerName("b").subscribe();
      a.acknowledge(got.get(0));
      a.close();
      var again = taken(b, 3);
      s.is("moved", again.stream().map(Checks::text).toList());
      s.is("counts", again.stream().map(Message::getRedeliveryCount).toList());
    });
  }

  static void redelivery() {
    checks.put("nack/order", s -> {
      var c = consumer(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
      send(s.topic, 4);
      var got = taken(c, 4);
      c.acknowledge(got.get(0));
      c.negativeAcknowledge(got.get(1));
      s.is("exclusive", rest(c));
    });
    for (var type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared, SubscriptionType.Failover))
      checks.put("nack/counts-" + type, s -> {
        var c = consumer(s.topic, type).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
        send(s.topic, 1);
        for (int i = 0; i < 3; i++) { var m = next(c); s.is("count", m.getRedeliveryCount()); c.negativeAcknowledge(m); }
      });
    checks.put("nack/backoff", s -> {
      var c = shared(s.topic).negativeAckRedeliveryBackoff(MultiplierRedeliveryBackoff.builder().minDelayMs(100).maxDelayMs(2000).multiplier(8).build()).subscribe();
      send(s.topic, 1);
      for (int i = 0; i < 3; i++) {
        long start = System.nanoTime();
        var m = next(c);
        s.is("count", m.getRedeliveryCount() + (i == 0 ? "" : (System.nanoTime() - start) / 1_000_000 >= (i == 1 ? 60 : 600) ? " later" : " at once"));
        c.negativeAcknowledge(m);
      }
    });
    checks.put("nack/batch", s -> {
      var c = shared(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
      send(batched(s.topic).create(), numbered(0, 3));
      var got = taken(c, 3);
      c.acknowledge(got.get(0));
      c.negativeAcknowledge(got.get(1));
      s.is("again", rest(c));
    });
    checks.put("ack-timeout/redelivers", s -> {
      var c = shared(s.topic).ackTimeout(1, TimeUnit.SECONDS).subscribe();
      send(s.topic, 2);
      var got = taken(c, 2);
      c.acknowledge(got.get(1));
      var again = next(c);
      s.is("again", text(again) + again.getRedeliveryCount());
    });
    checks.put("ack-timeout/exclusive", s -> {
      var c = consumer(s.topic).ackTimeout(1, TimeUnit.SECONDS).subscribe();
      send(s.topic, 2);
      taken(c, 2);
      s.is("again", received(c, 2));
    });
    checks.put("ack-timeout/backoff", s -> {
      var c = shared(s.topic).ackTimeout(1, TimeUnit.SECONDS).ackTimeoutRedeliveryBackoff(MultiplierRedeliveryBackoff.builder().minDelayMs(1000).maxDelayMs(2000).build()).subscribe();
      send(s.topic, 1);
      for (int i = 0; i < 3; i++) s.is("count", next(c).getRedeliveryCount());
    });
    checks.put("redeliver/all", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 3);
      c.acknowledge(taken(c, 3).get(0));
      c.redeliverUnacknowledgedMessages();
      s.is("again", rest(c));
    });
    checks.put("redeliver/shared", s -> {
      var c = shared(s.topic).subscribe();
      send(s.topic, 3);
      c.acknowledge(taken(c, 3).get(1));
      c.redeliverUnacknowledgedMessages();
      s.is("again", rest(c));
    });
    checks.put("redeliver/reconnect-counts", s -> {
      send(s.topic, 1);
      for (var type : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
        for (int i = 0; i < 3; i++)
          try (var c = consumer(s.topic, type).subscriptionName(type.name()).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            s.is(type + "", next(c).getRedeliveryCount());
          }
      }
    });
  }

  static void deadLetters() {
    checks.put("dead-letter/default", s -> {
      var dead = consumer(s.topic + "-s-DLQ").subscribe();
      var c = shared(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
      unbatched(s.topic).create().newMessage().key("k").eventTime(5).property("a", "b").value("bad".getBytes()).send();
      for (int i = 0; i < 2; i++) c.negativeAcknowledge(next(c));
      c.receiveAsync();
      var m = next(dead);
      s.is("dead", text(m) + " " + m.getKey() + " " + m.getEventTime());
      s.is("properties", new TreeMap<>(m.getProperties()).keySet());
      s.is("real", m.getProperty("REAL_TOPIC"));
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
    checks.put("dead-letter/named", s -> {
      var policy = DeadLetterPolicy.builder().maxRedeliverCount(1).deadLetterTopic(s.topic + "-dead").initialSubscriptionName("first").build();
      var c = shared(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).deadLetterPolicy(policy).subscribe();
      send(s.topic, 1);
      for (int i = 0; i < 2; i++) c.negativeAcknowledge(next(c));
      c.receiveAsync();
      s.is("subscription", until(() -> admin.topics().getList("public/default").contains(s.topic + "-dead") && admin.topics().getSubscriptions(s.topic + "-dead").contains("first")));
      s.is("dead", next(client().newConsumer().topic(s.topic + "-dead").subscriptionName("first").subscribe()));
    });
    checks.put("dead-letter/batch", s -> {
      var dead = consumer(s.topic + "-s-DLQ").subscribe();
      var c = shared(s.topic).enableBatchIndexAcknowledgment(true).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
      send(batched(s.topic).create(), numbered(0, 3));
      var got = taken(c, 3);
      c.acknowledge(got.get(0));
      for (var each : got.subList(1, 3)) c.negativeAcknowledge(each);
      for (var each : taken(c, 2)) c.negativeAcknowledge(each);
      c.receiveAsync();
      s.is("dead", new TreeSet<>(received(dead, 2)));
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
    checks.put("dead-letter/exclusive", s -> s.gets("consumer",
        () -> consumer(s.topic).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe().isConnected()));
    checks.put("dead-letter/refused", s -> s.gets("count", () -> shared(s.topic).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(0).build()).subscribe()));
    checks.put("dead-letter/key-shared", s -> {
      var dead = consumer(s.topic + "-s-DLQ").subscribe();
      var c = consumer(s.topic, SubscriptionType.Key_Shared).ackTimeout(1, TimeUnit.SECONDS).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
      unbatched(s.topic).create().newMessage().key("k").value("bad".getBytes()).send();
      taken(c, 2);
      c.receiveAsync();
      s.is("dead", next(dead));
    });
    checks.put("dead-letter/schema", s -> {
      var c = client().newConsumer(Schema.STRING).topic(s.topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
          .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).initialSubscriptionName("i").build()).subscribe();
      client().newProducer(Schema.STRING).topic(s.topic).create().send("bad");
      for (int i = 0; i < 2; i++) c.negativeAcknowledge(next(c));
      c.receiveAsync();
      s.is("created", until(() -> admin.topics().getList("public/default").contains(s.topic + "-s-DLQ")));
      s.is("dead", next(client().newConsumer(Schema.STRING).topic(s.topic + "-s-DLQ").subscriptionName("i").subscribe()).getValue());
      s.is("schema", admin.schemas().getSchemaInfo(s.topic + "-s-DLQ").getType());
    });
    checks.put("retry/default", s -> {
      var c = shared(s.topic).enableRetry(true).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
      var dead = consumer(s.topic + "-s-DLQ").subscribe();
      unbatched(s.topic).create().newMessage().key("k").property("a", "b").value("x".getBytes()).send();
      for (int i = 0; i < 3; i++) {
        var m = next(c);
        s.is("got", text(m) + " " + m.getKey() + " " + m.getTopicName().replace(s.topic, "T"));
        s.is("properties", new TreeMap<>(m.getProperties()).toString().replaceAll("ORIGIN_MESSAGE_IDY?_?T?I?M?E?=[^,}]*", "ORIGIN=ID"));
        c.reconsumeLater(m, 200, TimeUnit.MILLISECONDS);
      }
      s.is("dead", text(next(dead)));
    });
    checks.put("retry/properties", s -> {
      var c = shared(s.topic).enableRetry(true).subscribe();
      send(s.topic, 1);
      c.reconsumeLater(next(c), Map.of("why", "later"), 100, TimeUnit.MILLISECONDS);
      s.is("why", next(c).getProperty("why"));
      s.is("topics", new TreeSet<>(admin.topics().getList("public/default").stream().filter(each -> each.startsWith(s.topic)).toList()));
    });
    checks.put("retry/disabled", s -> {
      var c = shared(s.topic).subscribe();
      send(s.topic, 1);
      var m = next(c);
      s.does("later", () -> c.reconsumeLater(m, 1, TimeUnit.SECONDS));
    });
    checks.put("retry/cumulative", s -> {
      var c = consumer(s.topic).enableRetry(true).subscribe();
      send(s.topic, 3);
      var got = taken(c, 3);
      s.does("later", () -> c.reconsumeLaterCumulative(got.get(1), 100, TimeUnit.MILLISECONDS));
      s.is("again", rest(c));
    });
    checks.put("retry/named", s -> {
      var c = shared(s.topic).enableRetry(true).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(5).retryLetterTopic(s.topic + "-mine").build()).subscribe();
      send(s.topic, 1);
      c.reconsumeLater(next(c), 100, TimeUnit.MILLISECONDS);
      s.is("topic", next(c).getTopicName().replace(s.topic, "T"));
    });
  }

  static void delays() {
    for (var type : SubscriptionType.values())
      checks.put("delay/" + type, s -> {
        var c = consumer(s.topic, type).subscribe();
        var p = unbatched(s.topic).create();
        long start = System.currentTimeMillis();
        p.newMessage().value("late".getBytes()).deliverAfter(3, TimeUnit.SECONDS).send();
        p.send("now".getBytes());
        s.is("got", received(c, 2));
        s.is("waited", System.currentTimeMillis() - start > 1800);
      });
    checks.put("delay/in-order-of-time", s -> {
      var c = shared(s.topic).subscribe();
      var p = unbatched(s.topic).create();
      long now = System.currentTimeMillis();
      for (int each : new int[] {9000, 3000, -5000}) p.newMessage().value((each + "").getBytes()).deliverAt(now + each).send();
      s.is("got", received(c, 3));
    });
    checks.put("delay/batched", s -> {
      var c = shared(s.topic).subscribe();
      var p = batched(s.topic).create();
      var first = p.sendAsync("a".getBytes());
      s.is("id", at(p.newMessage().value("late".getBytes()).deliverAfter(2, TimeUnit.SECONDS).sendAsync().get(WAIT, TimeUnit.SECONDS)));
      p.flush();
      s.is("got", new TreeSet<>(received(c, 2)));
    });
    checks.put("delay/stats", s -> {
      shared(s.topic).subscribe();
      unbatched(s.topic).create().newMessage().value("late".getBytes()).deliverAfter(1, TimeUnit.HOURS).send();
      s.is("delayed", until(() -> admin.topics().getStats(s.topic).getSubscriptions().get("s").getMsgDelayed() == 1));
      s.is("backlog", backlog(s.topic));
    });
    checks.put("delay/disabled", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setDelayedDeliveryMessages(ns, org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies.builder().active(false).tickTime(1000).build());
      var c = shared(topic).subscribe();
      unbatched(topic).create().newMessage().value("late".getBytes()).deliverAfter(1, TimeUnit.HOURS).send();
      s.is("got", next(c));
    });
    checks.put("delay/too-long", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setDelayedDeliveryMessages(ns, org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies.builder().active(true).tickTime(1000).maxDeliveryDelayInMillis(5000).build());
      var p = unbatched(topic).create();
      s.does("allowed", () -> p.newMessage().value("a".getBytes()).deliverAfter(1, TimeUnit.SECONDS).send());
      s.does("too long", () -> p.newMessage().value("b".getBytes()).deliverAfter(1, TimeUnit.HOURS).send());
      s.does("after", () -> p.send("c".getBytes()));
    });
  }
}
