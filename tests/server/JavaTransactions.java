import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions of the official Java client, unchanged. Each check has topics of its own and prints a line that begins with `ok` or `FAIL` and its
 * name. Argument: the service URL.
 */
public class JavaTransactions {
  static final int WAIT = 30;  // seconds, for a message that must come
  static final int NONE = 1;  // for one that must not
  static final String RUN = "persistent://public/default/txn-" + UUID.randomUUID() + "-";
  static PulsarClient client;

  interface Body { void run(String topic) throws Exception; }

  public static void main(String[] args) throws Exception {
    client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).build();
    Map<String, Body> checks = new LinkedHashMap<>();
    messages(checks);
    acks(checks);
    ExecutorService pool = Executors.newCachedThreadPool();
    checks.forEach((name, body) -> pool.submit(() -> {
      try {
        body.run(RUN + name);
        System.out.println("ok   " + name);
      } catch (Throwable error) {
        String trace = Stream.of(error.getStackTrace()).map(each -> "\n    " + each).collect(Collectors.joining());
        System.out.println("FAIL " + name + ": " + error + trace);
      }
    }));
    pool.shutdown();
    pool.awaitTermination(10, TimeUnit.MINUTES);
    client.close();
    System.exit(0);
  }

  static Transaction begin() throws Exception { return begin(600_000); }

  static Transaction begin(int millis) throws Exception {
    return client.newTransaction().withTransactionTimeout(millis, TimeUnit.MILLISECONDS).build().get();
  }

  static Producer<byte[]> producer(String topic, boolean batching) throws Exception {
    return client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).enableBatching(batching)
        .batchingMaxPublishDelay(100, TimeUnit.MILLISECONDS).create();
  }

  static ConsumerBuilder<byte[]> subscription(String topic, SubscriptionType type) {
    return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type).enableBatchIndexAcknowledgment(true)
        .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).isAckReceiptEnabled(true);
  }

  static void send(Producer<byte[]> producer, Transaction txn, int first, int end) throws Exception {
    List<CompletableFuture<MessageId>> sent = new ArrayList<>();
    for (int i = first; i < end; i++) {
      var message = txn == null ? producer.newMessage() : producer.newMessage(txn);
      sent.add(message.value(("m" + i).getBytes()).sendAsync());
    }
    producer.flush();
    for (var each : sent) each.get(WAIT, TimeUnit.SECONDS);
  }

  static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
    Message<byte[]> found = consumer.receive(WAIT, TimeUnit.SECONDS);
    if (found == null) throw new AssertionError("no message");
    return found;
  }

  static List<Message<byte[]>> next(Consumer<byte[]> consumer, int count) throws Exception {
    List<Message<byte[]>> found = new ArrayList<>();
    for (int i = 0; i < count; i++) found.add(next(consumer));
    return found;
  }

  static String text(Message<byte[]> message) { return new String(message.getData()); }

  static List<String> texts(Consumer<byte[]> consumer, int count) throws Exception {
    return next(consumer, count).stream().map(JavaTransactions::text).toList();
  }

  static void nothing(Consumer<byte[]> consumer) throws Exception {
    Message<byte[]> found = consumer.receive(NONE, TimeUnit.SECONDS);
    if (found != null) throw new AssertionError("a message: " + text(found));
  }

  static void eq(Object found, Object wanted) { if (!Objects.equals(found, wanted)) throw new AssertionError(found + " != " + wanted); }

  static List<String> numbered(int first, int end) { return IntStream.range(first, end).mapToObj(i -> "m" + i).toList(); }

  static void fails(Callable<?> work, Class<?> kind) throws Exception {
    try {
      work.call();
    } catch (ExecutionException error) {
      Throwable cause = error.getCause();
      if (!kind.isInstance(cause)) throw new AssertionError("another error: " + cause, cause);
      return;
    }
    throw new AssertionError("no " + kind.getSimpleName());
  }

  static void messages(Map<String, Body> checks) {
    for (boolean batching : List.of(true, false)) {
      checks.put("commit-batching-" + batching, topic -> {
        Consumer<byte[]> c = subscription(topic, SubscriptionType.Exclusive).subscribe();
        Transaction txn = begin();
        send(producer(topic, batching), txn, 0, 10);
        nothing(c);
        txn.commit().get();
        eq(texts(c, 10), numbered(0, 10));
        eq(txn.getState(), Transaction.State.COMMITTED);
      });
      checks.put("abort-batching-" + batching, topic -> {
        Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).subscribe();
        Producer<byte[]> p = producer(topic, batching);
        Transaction txn = begin();
        send(p, txn, 0, 10);
        send(p, null, 10, 12);
        nothing(c);
        txn.abort().get();
        eq(texts(c, 2), numbered(10, 12));
        nothing(c);
      });
    }
    checks.put("many-producers", topic -> {
      Consumer<byte[]> c = client.newConsumer().topics(List.of(topic + "-a", topic + "-b")).subscriptionName("s").subscribe();
      Transaction txn = begin();
      send(producer(topic + "-a", true), txn, 0, 5);
      send(producer(topic + "-b", false), txn, 5, 10);
      nothing(c);
      txn.commit().get();
      eq(new TreeSet<>(texts(c, 10)), new TreeSet<>(numbered(0, 10)));
    });
    checks.put("timeout", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Exclusive).subscribe();
      Producer<byte[]> p = producer(topic, false);
      Transaction txn = begin(2000);
      send(p, txn, 0, 2);
      send(p, null, 2, 3);
      eq(text(next(c)), "m2");
      fails(() -> txn.commit().get(), Exception.class);
    });
    checks.put("reader-and-last-message-id", topic -> {
      Producer<byte[]> p = producer(topic, false);
      send(p, null, 0, 1);
      Transaction txn = begin();
      send(p, txn, 1, 2);
      Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
      eq(new String(reader.readNext(WAIT, TimeUnit.SECONDS).getData()), "m0");
      eq(reader.hasMessageAvailable(), false);
      txn.commit().get();
      eq(reader.hasMessageAvailable(), true);
      eq(new String(reader.readNext(WAIT, TimeUnit.SECONDS).getData()), "m1");
    });
    checks.put("many-after-each-other", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Failover).subscribe();
      Producer<byte[]> p = producer(topic, false);
      for (int i = 0; i < 20; i++) {
        Transaction txn = begin();
        send(p, txn, i, i + 1);
        (i % 2 == 0 ? txn.commit() : txn.abort()).get();
      }
      eq(texts(c, 10), IntStream.range(0, 10).mapToObj(i -> "m" + 2 * i).toList());
      nothing(c);
    });
  }

  static void acks(Map<String, Body> checks) {
    for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared, SubscriptionType.Exclusive, SubscriptionType.Failover))
      for (boolean batching : List.of(true, false))
        checks.put("ack-" + type + "-batching-" + batching, topic -> {
          Consumer<byte[]> c = subscription(topic, type).subscribe();
          send(client.newProducer().topic(topic).enableBatching(batching).batcherBuilder(BatcherBuilder.KEY_BASED).create(), null, 0, 10);
          Transaction txn = begin();
          for (Message<byte[]> each : next(c, 10)) c.acknowledgeAsync(each.getMessageId(), txn).get();
          c.redeliverUnacknowledgedMessages();
          nothing(c);
          txn.abort().get();
          Transaction again = begin();
          List<Message<byte[]>> found = next(c, 10);
          eq(found.stream().map(JavaTransactions::text).toList(), numbered(0, 10));
          for (Message<byte[]> each : found) c.acknowledgeAsync(each.getMessageId(), again).get();
          again.commit().get();
          c.close();
          nothing(subscription(topic, type).subscribe());
        });
    for (boolean batching : List.of(true, false))
      checks.put("cumulative-batching-" + batching, topic -> {
        Consumer<byte[]> c = subscription(topic, SubscriptionType.Failover).subscribe();
        send(producer(topic, batching), null, 0, 10);
        Transaction aborted = begin();
        List<Message<byte[]>> found = next(c, 10);
        c.acknowledgeCumulativeAsync(found.get(6).getMessageId(), aborted).get();
        fails(() -> c.acknowledgeCumulativeAsync(found.get(8).getMessageId(), begin()).get(), PulsarClientException.TransactionConflictException.class);
        aborted.abort().get();
        Transaction txn = begin();
        c.acknowledgeCumulativeAsync(found.get(6).getMessageId(), txn).get();
        txn.commit().get();
        c.redeliverUnacknowledgedMessages();
        eq(texts(c, 3), numbered(7, 10));
      });
    checks.put("conflict", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).subscribe();
      send(producer(topic, false), null, 0, 3);
      List<Message<byte[]>> found = next(c, 3);
      Transaction txn = begin(), other = begin();
      c.acknowledgeAsync(found.get(0).getMessageId(), txn).get();
      fails(() -> c.acknowledgeAsync(found.get(0).getMessageId(), other).get(), PulsarClientException.TransactionConflictException.class);
      c.acknowledgeAsync(found.get(1).getMessageId()).get();
      fails(() -> c.acknowledgeAsync(found.get(1).getMessageId(), other).get(), PulsarClientException.TransactionConflictException.class);
      txn.commit().get();
    });
    checks.put("parts-of-a-batch", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).subscribe();
      send(producer(topic, true), null, 0, 5);
      List<Message<byte[]>> found = next(c, 5);
      Transaction one = begin(), other = begin();
      c.acknowledgeAsync(found.get(1).getMessageId(), one).get();
      c.acknowledgeAsync(found.get(3).getMessageId(), other).get();
      one.commit().get();
      other.abort().get();
      c.redeliverUnacknowledgedMessages();
      Set<String> left = new TreeSet<>();
      Message<byte[]> each;
      while ((each = c.receive(2, TimeUnit.SECONDS)) != null) left.add(text(each));
      eq(left, new TreeSet<>(List.of("m0", "m2", "m3", "m4")));
    });
    checks.put("timeout-of-acks", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).subscribe();
      send(producer(topic, false), null, 0, 1);
      Transaction txn = begin(2000);
      c.acknowledgeAsync(next(c).getMessageId(), txn).get();
      eq(text(next(c)), "m0");
    });
    checks.put("consume-and-produce", topic -> {
      Consumer<byte[]> in = subscription(topic + "-in", SubscriptionType.Shared).subscribe();
      Consumer<byte[]> out = subscription(topic + "-out", SubscriptionType.Exclusive).subscribe();
      send(producer(topic + "-in", true), null, 0, 20);
      Producer<byte[]> p = producer(topic + "-out", true);
      for (int i = 0; i < 4; i++) {
        Transaction txn = begin();
        List<CompletableFuture<?>> done = new ArrayList<>();
        for (Message<byte[]> each : next(in, 5)) {
          done.add(p.newMessage(txn).value(each.getData()).sendAsync());
          done.add(in.acknowledgeAsync(each.getMessageId(), txn));
        }
        for (var each : done) each.get(WAIT, TimeUnit.SECONDS);
        txn.commit().get();
      }
      eq(texts(out, 20), numbered(0, 20));
      in.close();
      nothing(subscription(topic + "-in", SubscriptionType.Shared).subscribe());
    });
    checks.put("an-ended-transaction", topic -> {
      Producer<byte[]> p = producer(topic, false);
      Transaction txn = begin();
      send(p, txn, 0, 1);
      txn.commit().get();
      fails(() -> p.newMessage(txn).value("late".getBytes()).sendAsync().get(), Exception.class);
      fails(() -> txn.abort().get(), Exception.class);
    });
  }
}
