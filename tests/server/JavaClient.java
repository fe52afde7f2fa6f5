import java.util.*;
import java.util.concurrent.*;
import java.util.regex.Pattern;
import java.util.stream.*;
import org.apache.pulsar.client.admin.*;
import org.apache.pulsar.client.api.*;

/**
 * The official Java client, unchanged. The checks run at the same time, each on topics of its own, and each prints a line that
 * begins with `ok` or `FAIL` and its name. Arguments: service URL, admin URL, and a pattern of the names of the checks.
 */
public class JavaClient {
  static final int WAIT = 90;  // seconds, for a message that must come
  static String url;
  static PulsarClient client;
  static PulsarAdmin admin;
  static final String RUN = "persistent://public/default/java-" + UUID.randomUUID() + "-";
  static final Map<String, Body> checks = new LinkedHashMap<>();

  interface Body { void run(String topic) throws Exception; }

  public static class Person { public String name; public int age; }

  public static void main(String[] args) throws Exception {
    url = args[0];
    client = newClient();
    admin = PulsarAdmin.builder().serviceHttpUrl(args[1]).requestTimeout(2, TimeUnit.MINUTES).build();
    sending();
    routing();
    acknowledging();
    positions();
    schemas();
    Pattern wanted = Pattern.compile(args[2]);
    ExecutorService pool = Executors.newCachedThreadPool();
    checks.forEach((name, body) -> { if (wanted.matcher(name).matches()) pool.submit(() -> run(name, body)); });
    pool.shutdown();
    pool.awaitTermination(1, TimeUnit.HOURS);
    client.close();
    admin.close();
    System.exit(0);
  }

  static PulsarClient newClient() throws Exception {
    return PulsarClient.builder().serviceUrl(url).operationTimeout(2, TimeUnit.MINUTES).build();
  }

  static void run(String name, Body body) {
    long start = System.nanoTime();
    try {
      body.run(RUN + name);
      System.out.println("ok   " + name + " " + (System.nanoTime() - start) / 1000000 + " ms");
    } catch (Throwable error) {
      String trace = Stream.of(error.getStackTrace()).map(each -> "\n    " + each).collect(Collectors.joining());
      System.out.println("FAIL " + name + ": " + error + trace);
    }
  }

  static void eq(Object found, Object wanted) { if (!Objects.equals(found, wanted)) throw new AssertionError(found + " != " + wanted); }

  static List<String> numbered(int first, int end) { return IntStream.range(first, end).mapToObj(i -> "m" + i).toList(); }

  static ProducerBuilder<byte[]> unbatched(String topic) { return client.newProducer().topic(topic).enableBatching(false); }

  static ConsumerBuilder<byte[]> subscription(String topic, SubscriptionType type) {
    return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type);
  }

  static Consumer<byte[]> subscribe(String topic) throws Exception { return subscription(topic, SubscriptionType.Exclusive).subscribe(); }

  static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
    Message<byte[]> found = consumer.receive(WAIT, TimeUnit.SECONDS);
    if (found == null) throw new AssertionError("no message");
    return found;
  }

  static String text(Message<byte[]> message) { return new String(message.getData()); }

  /** The next messages, acknowledged. */
  static List<String> received(Consumer<byte[]> consumer, int count) throws Exception {
    List<String> found = new ArrayList<>();
    for (int i = 0; i < count; i++) { Message<byte[]> m = next(consumer); found.add(text(m)); consumer.acknowledge(m); }
    return found;
  }

  /** Send without waiting in between, and then wait for all receipts. */
  static List<MessageIdAdv> send(Producer<byte[]> producer, List<String> texts) throws Exception {
    List<CompletableFuture<MessageId>> sent = new ArrayList<>();
    for (String each : texts) sent.add(producer.sendAsync(each.getBytes()));
    producer.flush();
    List<MessageIdAdv> found = new ArrayList<>();
    for (var each : sent) found.add((MessageIdAdv) each.get());
    return found;
  }

  static void sending() {
    for (SubscriptionType type : SubscriptionType.values())
      checks.put("type-" + type, topic -> {
        Consumer<byte[]> c = subscription(topic, type).subscribe();
        Producer<byte[]> p = unbatched(topic).create();
        for (int i = 0; i < 20; i++) p.newMessage().key("k" + i % 3).value(("m" + i).getBytes()).sendAsync();
        p.flush();
        eq(received(c, 20), numbered(0, 20));
      });
    for (boolean batching : List.of(true, false))
      checks.put("batching-" + batching, topic -> {
        Consumer<byte[]> c = subscribe(topic);
        Producer<byte[]> p = client.newProducer().topic(topic).enableBatching(batching).batchingMaxPublishDelay(1, TimeUnit.MINUTES).create();
        List<MessageIdAdv> ids = send(p, numbered(0, 10));
        eq(ids.stream().map(id -> id.getLedgerId() + ":" + id.getEntryId()).distinct().count(), batching ? 1L : 10L);
        eq(ids.get(9).getBatchIndex(), batching ? 9 : -1);
        eq(received(c, 10), numbered(0, 10));
      });
    for (CompressionType type : CompressionType.values())
      checks.put("compression-" + type, topic -> {
        Consumer<byte[]> c = subscribe(topic);
        send(client.newProducer().topic(topic).compressionType(type).create(), numbered(0, 50));
        eq(received(c, 50), numbered(0, 50));
      });
    checks.put("chunks", topic -> {
      Consumer<byte[]> c = subscribe(topic);
      byte[] large = new byte[12 << 20];
      new Random(1).nextBytes(large);
      unbatched(topic).enableChunking(true).create().send(large);
      eq(Arrays.equals(next(c).getData(), large), true);
    });
    checks.put("access-modes", topic -> {
      // When a fenced producer sends, the broker closes the connection.
      try (PulsarClient own = newClient()) {
        var builder = own.newProducer().topic(topic);
        Producer<byte[]> first = builder.clone().accessMode(ProducerAccessMode.Exclusive).create();
        try {
          builder.clone().accessMode(ProducerAccessMode.Exclusive).create();
          throw new AssertionError("two exclusive producers");
        } catch (PulsarClientException.ProducerFencedException expected) { }
        try {
          builder.clone().create();
          throw new AssertionError("a producer beside an exclusive one");
        } catch (PulsarClientException.ProducerBusyException expected) { }
        var waiting = builder.clone().accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        first.close();
        waiting.get(WAIT, TimeUnit.SECONDS).close();
        Producer<byte[]> second = builder.clone().accessMode(ProducerAccessMode.Exclusive).create();
        second.send("x".getBytes());
        builder.clone().accessMode(ProducerAccessMode.ExclusiveWithFencing).create().send("y".getBytes());
        try {
          second.send("z".getBytes());
          throw new AssertionError("a fenced producer sent");
        } catch (PulsarClientException.ProducerFencedException expected) { }
      }
    });
    checks.put("deduplication", topic -> {
      subscribe(topic).close();  // it keeps the messages
      admin.topicPolicies().setDeduplicationStatus(topic, true);
      Producer<byte[]> p = unbatched(topic).producerName("p").create();
      List<CompletableFuture<MessageId>> sent = new ArrayList<>();
      for (int i = 0; i < 40; i++) {
        sent.add(p.newMessage().sequenceId(i).value(("m" + i).getBytes()).sendAsync());
        if (i == 20) admin.topics().unload(topic);  // the client reconnects, and sends again what has no receipt
      }
      for (var each : sent) each.get();
      p.close();
      p = unbatched(topic).producerName("p").create();
      eq(p.getLastSequenceId(), 39L);
      for (int i = 30; i < 50; i++) p.newMessage().sequenceId(i).value(("m" + i).getBytes()).sendAsync();
      p.flush();
      eq(admin.topics().getInternalStats(topic).numberOfEntries, 50L);
      eq(received(subscribe(topic), 50), numbered(0, 50));
    });
  }

  static void routing() {
    checks.put("keys", topic -> {
      admin.topics().createPartitionedTopic(topic, 4);
      Consumer<byte[]> c = subscribe(topic);
      Producer<byte[]> p = unbatched(topic).create();
      Map<String, Set<Integer>> partitions = new TreeMap<>();
      for (int i = 0; i < 12; i++) {
        MessageId id = p.newMessage().key("k" + i % 6).value(("m" + i).getBytes()).send();
        partitions.computeIfAbsent("k" + i % 6, key -> new TreeSet<>()).add(((MessageIdAdv) id).getPartitionIndex());
      }
      eq(partitions.values().stream().allMatch(each -> each.size() == 1), true);
      eq(partitions.values().stream().distinct().count() > 1, true);
      eq(new TreeSet<>(received(c, 12)), new TreeSet<>(numbered(0, 12)));
    });
    checks.put("round-robin", topic -> {
      admin.topics().createPartitionedTopic(topic, 4);
      Consumer<byte[]> c = subscribe(topic);
      List<MessageIdAdv> ids = send(unbatched(topic).create(), numbered(0, 12));
      eq(ids.stream().collect(Collectors.groupingBy(MessageIdAdv::getPartitionIndex, Collectors.counting())),
         Map.of(0, 3L, 1, 3L, 2, 3L, 3, 3L));
      eq(new TreeSet<>(received(c, 12)), new TreeSet<>(numbered(0, 12)));
    });
    checks.put("pattern", topic -> {
      Producer<byte[]> a = client.newProducer().topic(topic + "-a").create(), b = client.newProducer().topic(topic + "-b").create();
      Consumer<byte[]> c = client.newConsumer().topicsPattern(Pattern.compile(topic + "-.*")).subscriptionName("s").subscribe();
      a.send("a".getBytes());
      b.send("b".getBytes());
      eq(new TreeSet<>(received(c, 2)), new TreeSet<>(List.of("a", "b")));
    });
    checks.put("multi-topic", topic -> {
      Consumer<byte[]> c = client.newConsumer().topics(List.of(topic + "-a", topic + "-b")).subscriptionName("s").subscribe();
      client.newProducer().topic(topic + "-a").create().send("a".getBytes());
      client.newProducer().topic(topic + "-b").create().send("b".getBytes());
      eq(new TreeSet<>(received(c, 2)), new TreeSet<>(List.of("a", "b")));
    });
  }

  static void acknowledging() {
    checks.put("nack", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).negativeAckRedeliveryDelay(1, TimeUnit.MILLISECONDS).subscribe();
      send(unbatched(topic).create(), numbered(0, 2));
      c.negativeAcknowledge(next(c));
      c.acknowledge(next(c));
      Message<byte[]> again = next(c);
      eq(text(again), "m0");
      eq(again.getRedeliveryCount(), 1);
    });
    checks.put("ack-timeout", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS).subscribe();
      unbatched(topic).create().send("x".getBytes());
      next(c);
      eq(next(c).getRedeliveryCount(), 1);
    });
    checks.put("cumulative-ack", topic -> {
      Consumer<byte[]> c = subscribe(topic);
      send(unbatched(topic).create(), numbered(0, 5));
      next(c);
      next(c);
      c.acknowledgeCumulative(next(c));
      c.close();
      eq(received(subscribe(topic), 2), numbered(3, 5));
    });
    checks.put("batch-index-ack", topic -> {
      var builder = subscription(topic, SubscriptionType.Shared).enableBatchIndexAcknowledgment(true);
      Consumer<byte[]> c = builder.subscribe();
      send(client.newProducer().topic(topic).batchingMaxPublishDelay(1, TimeUnit.MINUTES).create(), numbered(0, 4));
      for (int i = 0; i < 4; i++) { Message<byte[]> m = next(c); if (i % 2 == 1) c.acknowledge(m); }
      c.close();
      eq(received(builder.clone().subscribe(), 2), List.of("m0", "m2"));
    });
    checks.put("batch-receive", topic -> {
      Consumer<byte[]> c = subscribe(topic);
      send(client.newProducer().topic(topic).create(), numbered(0, 10));
      List<String> found = new ArrayList<>();
      while (found.size() < 10) {
        Messages<byte[]> some = c.batchReceive();
        some.forEach(each -> found.add(text(each)));
        c.acknowledge(some);
      }
      eq(found, numbered(0, 10));
    });
    checks.put("dead-letter", topic -> {
      Consumer<byte[]> dead = subscribe(topic + "-s-DLQ");
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).negativeAckRedeliveryDelay(1, TimeUnit.MILLISECONDS)
          .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
      unbatched(topic).create().send("bad".getBytes());
      for (int i = 0; i < 3; i++) c.negativeAcknowledge(next(c));
      c.receiveAsync();
      eq(text(next(dead)), "bad");
    });
    checks.put("retry-letter", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).enableRetry(true)
          .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
      unbatched(topic).create().send("again".getBytes());
      c.reconsumeLater(next(c), 1, TimeUnit.MILLISECONDS);
      Message<byte[]> again = next(c);
      eq(text(again), "again");
      eq(again.getProperty("RECONSUMETIMES"), "1");
    });
    checks.put("delayed", topic -> {
      Consumer<byte[]> c = subscription(topic, SubscriptionType.Shared).subscribe();
      Producer<byte[]> p = unbatched(topic).create();
      long due = System.currentTimeMillis() + 3000;
      p.newMessage().value("late".getBytes()).deliverAt(due).sendAsync();
      p.send("now".getBytes());
      eq(received(c, 2), List.of("now", "late"));
      eq(System.currentTimeMillis() >= due, true);
    });
  }

  static void positions() {
    checks.put("seek", topic -> {
      Consumer<byte[]> c = subscribe(topic);
      List<MessageIdAdv> ids = send(unbatched(topic).create(), numbered(0, 5));
      Thread.sleep(10);
      long later = System.currentTimeMillis();
      unbatched(topic).create().send("m5".getBytes());
      eq(received(c, 6), numbered(0, 6));
      c.seek(ids.get(2));
      eq(received(c, 1), numbered(3, 4));
      c.seek(later);
      eq(received(c, 1), numbered(5, 6));
      c.seek(MessageId.earliest);
      eq(received(c, 6), numbered(0, 6));
    });
    checks.put("reader", topic -> {
      List<MessageIdAdv> ids = send(unbatched(topic).create(), numbered(0, 5));
      Reader<byte[]> all = client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
      for (String each : numbered(0, 5)) eq(text(all.readNext(WAIT, TimeUnit.SECONDS)), each);
      eq(all.hasMessageAvailable(), false);
      Reader<byte[]> rest = client.newReader().topic(topic).startMessageId(ids.get(2)).create();
      for (String each : numbered(3, 5)) eq(text(rest.readNext(WAIT, TimeUnit.SECONDS)), each);
    });
    checks.put("table-view", topic -> {
      Producer<byte[]> p = unbatched(topic).create();
      for (String each : List.of("1", "2")) p.newMessage().key("a").value(each.getBytes()).send();
      TableView<byte[]> view = client.newTableView().topic(topic).create();
      eq(new String(view.get("a")), "2");
      p.newMessage().key("b").value("3".getBytes()).send();
      for (int i = 0; i < 20 * WAIT && view.size() < 2; i++) Thread.sleep(50);
      eq(new String(view.get("b")), "3");
    });
    checks.put("terminated", topic -> {
      Consumer<byte[]> c = subscribe(topic);
      unbatched(topic).create().send("x".getBytes());
      admin.topics().terminateTopic(topic);
      received(c, 1);
      for (int i = 0; i < 20 * WAIT && !c.hasReachedEndOfTopic(); i++) Thread.sleep(50);
      eq(c.hasReachedEndOfTopic(), true);
    });
  }

  static void schemas() {
    for (Schema<Person> schema : List.of(Schema.JSON(Person.class), Schema.AVRO(Person.class)))
      checks.put("schema-" + schema.getSchemaInfo().getType(), topic -> {
        Consumer<Person> c = client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Consumer<org.apache.pulsar.client.api.schema.GenericRecord> any =
            client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("any").subscribe();
        Person person = new Person();
        person.name = "Ada";
        person.age = 36;
        client.newProducer(schema).topic(topic).create().send(person);
        eq(c.receive(WAIT, TimeUnit.SECONDS).getValue().name, "Ada");
        eq(any.receive(WAIT, TimeUnit.SECONDS).getValue().getField("age").toString(), "36");
        eq(admin.schemas().getSchemaInfo(topic).getType(), schema.getSchemaInfo().getType());
      });
    checks.put("schema-KEY_VALUE", topic -> {
      var schema = Schema.KeyValue(Schema.STRING, Schema.INT64, org.apache.pulsar.common.schema.KeyValueEncodingType.SEPARATED);
      var c = client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
      client.newProducer(schema).topic(topic).create().send(new org.apache.pulsar.common.schema.KeyValue<>("k", 7L));
      var found = c.receive(WAIT, TimeUnit.SECONDS);
      eq(found.getValue().getKey() + found.getValue().getValue(), "k7");
    });
  }
}
