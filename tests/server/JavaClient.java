import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.admin.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.regex.Pattern;

/** The official Java client, unchanged: each check prints `ok` or `FAIL` with its name. Arguments: service URL, admin URL. */
public class JavaClient {
  static PulsarClient client;
  static int failures = 0;
  interface Body { void run(String topic) throws Exception; }
  static void check(String name, Body body) {
    long t = System.nanoTime();
    try { body.run("persistent://public/default/" + name); System.out.println("ok   " + name + " " + (System.nanoTime()-t)/1000000 + " ms"); }
    catch (Throwable e) { failures++; System.out.println("FAIL " + name + ": " + e); e.printStackTrace(System.out); }
  }
  static void eq(Object a, Object b) { if (!Objects.equals(a, b)) throw new AssertionError(a + " != " + b); }
  public static class Person { public String name; public int age; }

  public static void main(String[] args) throws Exception {
    client = PulsarClient.builder().serviceUrl(args[0]).build();
    PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[1]).build();
    for (SubscriptionType type : SubscriptionType.values())
      check("type-" + type, topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type).subscribe();
        Producer<byte[]> p = client.newProducer().topic(topic).enableBatching(false).create();
        for (int i = 0; i < 20; i++) p.newMessage().key("k" + i % 3).value(("m" + i).getBytes()).send();
        for (int i = 0; i < 20; i++) { Message<byte[]> m = c.receive(10, TimeUnit.SECONDS); eq(new String(m.getData()), "m" + i); c.acknowledge(m); }
      });
    for (CompressionType type : CompressionType.values())
      check("compression-" + type, topic -> {
        Consumer<String> c = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscribe();
        Producer<String> p = client.newProducer(Schema.STRING).topic(topic).compressionType(type).create();
        List<CompletableFuture<MessageId>> all = new ArrayList<>();
        for (int i = 0; i < 50; i++) all.add(p.sendAsync("m" + i));
        p.flush(); for (var f : all) f.get();
        for (int i = 0; i < 50; i++) { Message<String> m = c.receive(10, TimeUnit.SECONDS); eq(m.getValue(), "m" + i); c.acknowledge(m); }
      });
    check("chunks", topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> p = client.newProducer().topic(topic).enableBatching(false).enableChunking(true).create();
        byte[] large = new byte[12 << 20]; new Random(1).nextBytes(large);
        p.send(large);
        if (!Arrays.equals(c.receive(20, TimeUnit.SECONDS).getData(), large)) throw new AssertionError();
      });
    check("dead-letter", topic -> {
        Consumer<byte[]> dead = client.newConsumer().topic(topic + "-s-DLQ").subscriptionName("d").subscribe();
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
            .negativeAckRedeliveryDelay(1, TimeUnit.MILLISECONDS).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
        client.newProducer().topic(topic).create().send("bad".getBytes());
        for (int i = 0; i < 3; i++) c.negativeAcknowledge(c.receive(10, TimeUnit.SECONDS));
        c.receive(200, TimeUnit.MILLISECONDS);
        eq(new String(dead.receive(10, TimeUnit.SECONDS).getData()), "bad");
      });
    check("retry-letter", topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
            .enableRetry(true).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
        client.newProducer().topic(topic).create().send("again".getBytes());
        c.reconsumeLater(c.receive(10, TimeUnit.SECONDS), 1, TimeUnit.MILLISECONDS);
        Message<byte[]> m = c.receive(10, TimeUnit.SECONDS);
        eq(m.getProperty("RECONSUMETIMES"), "1");
        c.acknowledge(m);
      });
    check("delayed", topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared).subscribe();
        Producer<byte[]> p = client.newProducer().topic(topic).enableBatching(false).create();
        p.newMessage().value("late".getBytes()).deliverAfter(2, TimeUnit.SECONDS).send();
        p.send("now".getBytes());
        eq(new String(c.receive(10, TimeUnit.SECONDS).getData()), "now");
        eq(new String(c.receive(10, TimeUnit.SECONDS).getData()), "late");
      });
    check("ack-timeout", topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS).subscribe();
        client.newProducer().topic(topic).create().send("x".getBytes());
        c.receive(10, TimeUnit.SECONDS);
        eq(c.receive(10, TimeUnit.SECONDS).getRedeliveryCount(), 1);
      });
    check("seek-reader", topic -> {
        Producer<byte[]> p = client.newProducer().topic(topic).enableBatching(false).create();
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        List<MessageId> ids = new ArrayList<>();
        for (int i = 0; i < 5; i++) ids.add(p.send(("m" + i).getBytes()));
        for (int i = 0; i < 5; i++) c.receive(10, TimeUnit.SECONDS);
        c.seek(ids.get(2));
        eq(new String(c.receive(10, TimeUnit.SECONDS).getData()), "m3");
        Reader<byte[]> r = client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
        int n = 0; while (r.hasMessageAvailable()) { r.readNext(10, TimeUnit.SECONDS); n++; }
        eq(n, 5);
      });
    check("partitioned", topic -> {
        admin.topics().createPartitionedTopic(topic, 4);
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> p = client.newProducer().topic(topic).enableBatching(false).create();
        for (int i = 0; i < 12; i++) p.send(("m" + i).getBytes());
        Set<String> got = new TreeSet<>();
        for (int i = 0; i < 12; i++) { Message<byte[]> m = c.receive(10, TimeUnit.SECONDS); got.add(new String(m.getData())); c.acknowledge(m); }
        eq(got.size(), 12);
      });
    check("pattern", topic -> {
        Producer<byte[]> a = client.newProducer().topic(topic + "-a").create(), b = client.newProducer().topic(topic + "-b").create();
        Consumer<byte[]> c = client.newConsumer().topicsPattern(Pattern.compile("public/default/pattern-.*")).subscriptionName("s").subscribe();
        a.send("a".getBytes()); b.send("b".getBytes());
        Set<String> got = new TreeSet<>();
        for (int i = 0; i < 2; i++) got.add(new String(c.receive(10, TimeUnit.SECONDS).getData()));
        eq(got, new TreeSet<>(List.of("a", "b")));
      });
    check("schema", topic -> {
        for (Schema<Person> schema : List.of(Schema.JSON(Person.class), Schema.AVRO(Person.class))) {
          String t = topic + schema.getSchemaInfo().getType();
          Consumer<Person> c = client.newConsumer(schema).topic(t).subscriptionName("s").subscribe();
          var auto = client.newConsumer(Schema.AUTO_CONSUME()).topic(t).subscriptionName("auto").subscribe();
          Producer<Person> p = client.newProducer(schema).topic(t).create();
          Person person = new Person(); person.name = "Ada"; person.age = 36;
          p.send(person);
          eq(c.receive(10, TimeUnit.SECONDS).getValue().name, "Ada");
          eq(auto.receive(10, TimeUnit.SECONDS).getValue().getField("name").toString(), "Ada");
        }
      });
    check("table-view", topic -> {
        Producer<byte[]> p = client.newProducer().topic(topic).create();
        p.newMessage().key("a").value("1".getBytes()).send(); p.newMessage().key("a").value("2".getBytes()).send();
        TableView<byte[]> v = client.newTableView().topic(topic).create();
        eq(new String(v.get("a")), "2");
      });
    check("access-modes", topic -> {
        Producer<byte[]> p = client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
        try { client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create(); throw new AssertionError("not fenced"); } catch (PulsarClientException.ProducerFencedException e) {}
        var waiting = client.newProducer().topic(topic).accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        p.close(); waiting.get(10, TimeUnit.SECONDS).send("x".getBytes());
      });
    check("batch-receive-cumulative", topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").enableBatchIndexAcknowledgment(true).subscribe();
        Producer<byte[]> p = client.newProducer().topic(topic).create();
        for (int i = 0; i < 10; i++) p.sendAsync(("m" + i).getBytes()); p.flush();
        int n = 0; Message<byte[]> last = null; while (n < 10) for (Message<byte[]> m : c.batchReceive()) { n++; last = m; }
        c.acknowledgeCumulative(last);
      });
    check("terminated", topic -> {
        Consumer<byte[]> c = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> p = client.newProducer().topic(topic).create(); p.send("x".getBytes());
        admin.topics().terminateTopic(topic);
        c.acknowledge(c.receive(10, TimeUnit.SECONDS));
        for (int i = 0; i < 100 && !c.hasReachedEndOfTopic(); i++) Thread.sleep(50);
        eq(c.hasReachedEndOfTopic(), true);
      });
    client.close(); admin.close();
    System.out.println(failures + " failures");
    System.exit(failures);
  }
}
