import java.util.*;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;

/** How consumers get messages: one by one, in batches, by listeners; queues, pauses, interceptors, events. */
class Receiving extends Checks {
  static BatchReceivePolicy policy(int messages, int bytes, int millis) {
    return BatchReceivePolicy.builder().maxNumMessages(messages).maxNumBytes(bytes).timeout(millis, TimeUnit.MILLISECONDS).build();
  }

  static List<String> texts(Messages<byte[]> messages) {
    List<String> found = new ArrayList<>();
    messages.forEach(each -> found.add(text(each)));
    return found;
  }

  static void add() {
    batchReceive();
    listeners();
    queues();
    interceptors();
  }

  static void batchReceive() {
    checks.put("batch-receive/messages", s -> {
      var c = consumer(s.topic).batchReceivePolicy(policy(3, 0, 60000)).subscribe();
      send(s.topic, 7);
      s.is("first", texts(c.batchReceive()));
      s.is("second", texts(c.batchReceive()));
    });
    checks.put("batch-receive/bytes", s -> {
      var c = consumer(s.topic).batchReceivePolicy(policy(0, 25, 2000)).subscribe();
      send(unbatched(s.topic).create(), List.of("a".repeat(10), "b".repeat(10), "c".repeat(10), "d".repeat(30)));
      s.is("first", texts(c.batchReceive()));
      s.is("second", texts(c.batchReceive()));
      s.is("third", texts(c.batchReceive()));
    });
    checks.put("batch-receive/timeout", s -> {
      var c = consumer(s.topic).batchReceivePolicy(policy(10, 0, 700)).subscribe();
      s.is("empty", texts(c.batchReceive()));
      send(s.topic, 2);
      List<String> all = new ArrayList<>();
      while (all.size() < 2) all.addAll(texts(c.batchReceive()));
      s.is("all", all);
    });
    checks.put("batch-receive/acknowledge", s -> {
      var c = consumer(s.topic).batchReceivePolicy(policy(5, 0, 60000)).subscribe();
      send(batched(s.topic).create(), numbered(0, 5));
      var some = c.batchReceive();
      s.is("size", some.size());
      c.acknowledge(some);
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
    checks.put("batch-receive/negative", s -> {
      var c = shared(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).batchReceivePolicy(policy(2, 0, 60000)).subscribe();
      send(s.topic, 2);
      c.negativeAcknowledge(c.batchReceive());
      var again = c.batchReceive();
      s.is("again", new TreeSet<>(texts(again)));
      again.forEach(each -> s.is("count", each.getRedeliveryCount()));
    });
    checks.put("batch-receive/asynchronous", s -> {
      var c = consumer(s.topic).batchReceivePolicy(policy(2, 0, 60000)).subscribe();
      var first = c.batchReceiveAsync();
      s.is("done", first.isDone());
      send(s.topic, 2);
      s.is("got", texts(first.get(WAIT, TimeUnit.SECONDS)));
      var second = c.batchReceiveAsync();
      c.close();
      s.gets("closed", () -> second.get(WAIT, TimeUnit.SECONDS));
    });
    checks.put("batch-receive/refused", s -> {
      s.gets("nothing", () -> consumer(s.topic).batchReceivePolicy(policy(0, 0, 0)).subscribe().isConnected());
      s.gets("listener", () -> consumer(s.topic).messageListener((c, m) -> { }).subscribe().batchReceive());
      s.gets("no queue", () -> consumer(s.topic + "2").receiverQueueSize(0).batchReceivePolicy(policy(2, 0, 500)).subscribe().batchReceive());
    });
    checks.put("batch-receive/multi-topics", s -> {
      var c = client().newConsumer().topics(List.of(s.topic + "a", s.topic + "b")).subscriptionName("s").batchReceivePolicy(policy(4, 0, 60000)).subscribe();
      send(s.topic + "a", 2);
      send(s.topic + "b", 2);
      s.is("got", texts(c.batchReceive()).stream().sorted().toList());
    });
    checks.put("batch-receive/larger-than-queue", s -> {
      var c = consumer(s.topic).receiverQueueSize(2).batchReceivePolicy(policy(5, 0, 1500)).subscribe();
      send(s.topic, 5);
      List<String> all = new ArrayList<>();
      while (all.size() < 5) all.addAll(texts(c.batchReceive()));
      s.is("all", all);
    });
  }

  static void listeners() {
    checks.put("listener/order", s -> {
      List<String> found = synced();
      var c = consumer(s.topic).messageListener((consumer, m) -> { found.add(text(m)); consumer.acknowledgeAsync(m); }).subscribe();
      send(s.topic, 20);
      until(() -> found.size() == 20);
      s.is("found", found);
      s.gets("receive", () -> c.receive());
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
    checks.put("listener/throws", s -> {
      List<String> found = synced();
      shared(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).messageListener((c, m) -> {
        found.add(text(m) + m.getRedeliveryCount());
        if (m.getRedeliveryCount() == 0) { c.negativeAcknowledge(m); throw new IllegalStateException("x"); }
      }).subscribe();
      send(s.topic, 2);
      until(() -> found.size() == 4);
      s.is("found", new TreeSet<>(found));
    });
    checks.put("listener/threads", s -> {
      try (var own = PulsarClient.builder().serviceUrl(url).listenerThreads(3).build()) {
        Set<String> threads = ConcurrentHashMap.newKeySet();
        List<String> found = synced();
        for (int i = 0; i < 3; i++) {
          String topic = s.topic + i;
          own.newConsumer().topic(topic).subscriptionName("s").messageListener((c, m) -> { threads.add(Thread.currentThread().getName()); found.add(text(m)); }).subscribe();
          send(topic, 4);
        }
        s.is("all", until(() -> found.size() == 12));
        s.is("threads", threads.size() > 1);
      }
    });
    checks.put("listener/executor", s -> {
      Set<String> threads = ConcurrentHashMap.newKeySet();
      ExecutorService mine = Executors.newSingleThreadExecutor(task -> new Thread(task, "mine"));
      consumer(s.topic).messageListenerExecutor((m, task) -> mine.execute(task)).messageListener((c, m) -> threads.add(Thread.currentThread().getName())).subscribe();
      send(s.topic, 2);
      until(() -> !threads.isEmpty());
      s.is("threads", threads);
      mine.shutdown();
    });
    checks.put("listener/pause", s -> {
      List<String> found = synced();
      var c = consumer(s.topic).receiverQueueSize(1).messageListener((consumer, m) -> { found.add(text(m)); consumer.acknowledgeAsync(m); }).startPaused(true).subscribe();
      send(s.topic, 5);
      Thread.sleep(SILENCE);
      s.is("paused", found.size());
      c.resume();
      s.is("resumed", until(() -> found.size() == 5));
      c.pause();
      send(s.topic, 5);
      Thread.sleep(SILENCE);
      s.is("again", found.size() < 8);
      c.resume();
      s.is("all", until(() -> found.size() == 10));
    });
    checks.put("listener/end-of-topic", s -> {
      CompletableFuture<String> end = new CompletableFuture<>();
      List<String> found = synced();
      consumer(s.topic).messageListener(new MessageListener<byte[]>() {
        @Override public void received(Consumer<byte[]> c, Message<byte[]> m) { found.add(text(m)); c.acknowledgeAsync(m); }
        @Override public void reachedEndOfTopic(Consumer<byte[]> c) { end.complete("end"); }
      }).subscribe();
      send(s.topic, 2);
      admin.topics().terminateTopic(s.topic);
      s.gets("told", () -> end.get(WAIT, TimeUnit.SECONDS));
      s.is("found", found);
    });
  }

  static void queues() {
    checks.put("consumer/paused", s -> {
      var c = consumer(s.topic).receiverQueueSize(1).startPaused(true).subscribe();
      send(s.topic, 4);
      s.is("paused", none(c));
      c.resume();
      s.is("resumed", received(c, 4));
    });
    checks.put("consumer/zero-queue", s -> {
      var c = shared(s.topic).receiverQueueSize(0).subscribe();
      send(s.topic, 3);
      s.is("unasked", admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers().get(0).getMsgOutCounter());
      for (int i = 0; i < 3; i++) { var m = c.receive(); s.is("got", m); c.acknowledge(m); }
      s.gets("timeout", () -> c.receive(1, TimeUnit.SECONDS));
    });
    checks.put("consumer/zero-queue-batch", s -> {
      var c = consumer(s.topic).receiverQueueSize(0).subscribe();
      send(batched(s.topic).create(), numbered(0, 3));
      s.gets("got", () -> c.receiveAsync().get(SILENCE, TimeUnit.MILLISECONDS));
      s.is("connected", until(() -> !c.isConnected()));
    });
    checks.put("consumer/zero-queue-partitions", s -> {
      admin.topics().createPartitionedTopic(s.topic, 2);
      s.gets("consumer", () -> consumer(s.topic).receiverQueueSize(0).subscribe());
    });
    checks.put("consumer/queue-shares", s -> {
      var a = shared(s.topic).receiverQueueSize(2).consumerName("a").subscribe();
      var b = shared(s.topic).receiverQueueSize(2).consumerName("b").subscribe();
      send(s.topic, 10);
      until(() -> admin.topics().getStats(s.topic).getSubscriptions().get("s").getMsgOutCounter() >= 4);
      Thread.sleep(300);
      for (var each : admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers()) s.is("permits", each.getAvailablePermits() + " " + each.getUnackedMessages());
      s.is("all", new TreeSet<>(List.of(rest(a).size() + rest(b).size())));
    });
    checks.put("consumer/pooled", s -> {
      var c = consumer(s.topic).poolMessages(true).subscribe();
      send(batched(s.topic).create(), numbered(0, 2));
      send(s.topic, 1);
      for (int i = 0; i < 3; i++) { var m = next(c); s.is("got", m); c.acknowledge(m); m.release(); }
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
    checks.put("consumer/asynchronous", s -> {
      var c = consumer(s.topic).subscribe();
      var first = c.receiveAsync();
      var second = c.receiveAsync();
      send(s.topic, 1);
      s.is("first", text(first.get(WAIT, TimeUnit.SECONDS)) + " " + second.isDone());
      c.close();
      s.gets("second", () -> second.get(WAIT, TimeUnit.SECONDS));
    });
    checks.put("consumer/closed", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 1);
      var m = next(c);
      c.close();
      s.gets("receive", c::receive);
      s.does("acknowledge", () -> c.acknowledge(m));
      s.does("seek", () -> c.seek(MessageId.earliest));
      s.does("unsubscribe", c::unsubscribe);
      s.does("close", c::close);
      s.does("redeliver", c::redeliverUnacknowledgedMessages);
      s.gets("last", c::getLastMessageIds);
      s.is("connected", c.isConnected());
    });
    checks.put("consumer/properties", s -> {
      consumer(s.topic).consumerName("c").property("team", "blue").priorityLevel(3).subscribe();
      until(() -> admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers().get(0).getAvailablePermits() > 0);
      var found = admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers().get(0);
      s.is("metadata", found.getMetadata());
      s.is("name", found.getConsumerName());
      s.is("version", found.getClientVersion());
      s.is("permits", found.getAvailablePermits());
    });
    checks.put("consumer/name-generated", s -> {
      var c = consumer(s.topic).subscribe();
      s.is("length", c.getConsumerName().length());
      s.is("subscription", c.getSubscription() + " " + c.getTopic());
    });
    checks.put("consumer/same-names", s -> {
      shared(s.topic).consumerName("c").subscribe();
      s.gets("second", () -> shared(s.topic).consumerName("c").subscribe().isConnected());
      s.is("consumers", admin.topics().getStats(s.topic).getSubscriptions().get("s").getConsumers().size());
    });
    checks.put("consumer/settings-refused", s -> {
      s.gets("no subscription", () -> client().newConsumer().topic(s.topic).subscribe());
      s.gets("no topic", () -> client().newConsumer().subscriptionName("s").subscribe());
      s.gets("empty", () -> client().newConsumer().subscriptionName(""));
      s.gets("ack timeout", () -> consumer(s.topic).ackTimeout(5, TimeUnit.MILLISECONDS));
      s.gets("queue", () -> consumer(s.topic).receiverQueueSize(-1));
      s.gets("compacted", () -> shared(s.topic).readCompacted(true).subscribe());
      s.gets("compacted non-persistent", () -> consumer("non-persistent://public/default/" + s.short_).readCompacted(true).subscribe());
      s.gets("name", () -> client().newConsumer().topic(s.topic).subscriptionName("a/b c").subscribe().getSubscription());
    });
    checks.put("consumer/reconnects", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).create();
      p.send("m0".getBytes());
      var m = next(c);
      admin.topics().unload(s.topic);
      s.does("send", () -> p.send("m1".getBytes()));
      c.acknowledge(m);
      s.is("got", rest(c));
    });
    checks.put("consumer/unloaded-acknowledged", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 4);
      received(c, 2);
      until(() -> backlog(s.topic) == 2);
      admin.topics().unload(s.topic);
      s.is("redelivered", rest(c));
      s.is("last", at(c.getLastMessageIds().get(0)));
    });
  }

  static void interceptors() {
    checks.put("interceptor/consumer", s -> {
      List<String> found = synced();
      var c = shared(s.topic).ackTimeout(1, TimeUnit.SECONDS).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).intercept(new ConsumerInterceptor<byte[]>() {
        @Override public void close() { found.add("close"); }
        @Override public Message<byte[]> beforeConsume(Consumer<byte[]> c, Message<byte[]> m) { found.add("before " + text(m)); return m; }
        @Override public void onAcknowledge(Consumer<byte[]> c, MessageId id, Throwable e) { found.add("ack " + at(id).substring(0, 1) + " " + e); }
        @Override public void onAcknowledgeCumulative(Consumer<byte[]> c, MessageId id, Throwable e) { found.add("cumulative " + e); }
        @Override public void onNegativeAcksSend(Consumer<byte[]> c, Set<MessageId> ids) { found.add("negative " + ids.size()); }
        @Override public void onAckTimeoutSend(Consumer<byte[]> c, Set<MessageId> ids) { found.add("timeout " + ids.size()); }
      }).subscribe();
      send(s.topic, 1);
      c.negativeAcknowledge(next(c));
      next(c);
      c.acknowledge(next(c));
      s.does("cumulative", () -> c.acknowledgeCumulative(MessageId.earliest));
      c.close();
      s.is("found", found);
    });
    checks.put("interceptor/consumer-changes", s -> {
      ConsumerInterceptor<byte[]> throwing = new ConsumerInterceptor<>() {
        @Override public void close() { }
        @Override public Message<byte[]> beforeConsume(Consumer<byte[]> c, Message<byte[]> m) { throw new IllegalStateException("no"); }
        @Override public void onAcknowledge(Consumer<byte[]> c, MessageId id, Throwable e) { throw new IllegalStateException("no"); }
        @Override public void onAcknowledgeCumulative(Consumer<byte[]> c, MessageId id, Throwable e) { }
        @Override public void onNegativeAcksSend(Consumer<byte[]> c, Set<MessageId> ids) { }
        @Override public void onAckTimeoutSend(Consumer<byte[]> c, Set<MessageId> ids) { }
      };
      var c = consumer(s.topic).intercept(throwing).subscribe();
      send(s.topic, 2);
      s.is("got", received(c, 2));
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
  }
}
