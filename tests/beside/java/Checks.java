import java.util.*;
import java.util.concurrent.*;
import java.util.regex.*;
import java.util.stream.*;
import org.apache.pulsar.client.admin.*;
import org.apache.pulsar.client.api.*;

/**
 * What the official Java client sees of a broker, so that two brokers can be compared. Arguments: service URL, admin URL, a
 * pattern of the names of the checks, and a word that the names of all topics have. The checks run at the same time, each with a
 * client and topics of its own. Each prints one line, in their order: its name, and what it saw. No line has what differs from run
 * to run: ids of ledgers, addresses, times. The active consumer of a topic depends on the topic's name, so give the same word for
 * two brokers, and another one for a second run on the same broker.
 */
public class Checks {
  /** Seconds, for what must come. */
  static final int WAIT = 30;
  /** Milliseconds, for what must not come. */
  static final int SILENCE = 1500;
  static final Map<String, Check> checks = new LinkedHashMap<>();
  static final InheritableThreadLocal<PulsarClient> CLIENT = new InheritableThreadLocal<>();
  static String url, RUN;
  static PulsarAdmin admin;

  interface Check { void run(Seen s) throws Exception; }
  interface Action { void run() throws Exception; }

  public static void main(String[] args) throws Exception {
    url = args[0];
    RUN = args[3];
    admin = PulsarAdmin.builder().serviceHttpUrl(args[1]).build();
    Publishing.add();
    Securing.add();
    Receiving.add();
    Acknowledging.add();
    Subscribing.add();
    Reading.add();
    Topics.add();
    Policies.add();
    Views.add();
    Schemas.add();
    Pattern wanted = Pattern.compile(args[2]);
    ExecutorService pool = Executors.newFixedThreadPool(10);
    Map<String, Future<String>> lines = new LinkedHashMap<>();
    checks.forEach((name, check) -> { if (wanted.matcher(name).matches()) lines.put(name, pool.submit(() -> line(name, check))); });
    for (var each : lines.entrySet()) System.out.println("check " + each.getKey() + ": " + each.getValue().get());
    System.exit(0);
  }

  static String line(String name, Check check) throws Exception {
    Seen seen = new Seen(name);
    CompletableFuture<Void> done = new CompletableFuture<>();
    Thread thread = new Thread(() -> {
      try (var own = newClient()) {
        CLIENT.set(own);
        check.run(seen);
      }
      catch (Throwable error) { seen.is("ends with", told(error)); }
      done.complete(null);
    });
    thread.start();
    try { done.get(4 * WAIT, TimeUnit.SECONDS); } catch (TimeoutException error) { seen.is("took", "too long"); }
    thread.interrupt();
    return String.join("; ", List.copyOf(seen.found));
  }

  /** What a check saw, and the names that are its own. */
  static class Seen {
    final List<String> found = Collections.synchronizedList(new ArrayList<>());
    final String short_, topic;
    Seen(String name) {
      short_ = RUN + "-" + name.replaceAll("[^A-Za-z0-9]+", "-") + "-t";
      topic = "persistent://public/default/" + short_;
    }
    void is(String what, Object value) { found.add(what + "=" + alike(shown(value))); }
    /** What a call answers, or its error. */
    void gets(String what, Callable<?> call) {
      try { is(what, call.call()); } catch (Throwable error) { is(what, told(error)); }
    }
    /** Whether a call works, or its error. */
    void does(String what, Action call) { gets(what, () -> { call.run(); return "ok"; }); }
    /** A namespace of the check's own, and a topic in it. */
    String namespace() throws Exception {
      String name = "public/" + short_;
      admin.namespaces().createNamespace(name);
      return name;
    }
  }

  static String shown(Object value) {
    if (value instanceof byte[] bytes) return new String(bytes);
    if (value instanceof Message<?> message) return text(message);
    return String.valueOf(value);
  }

  static String told(Throwable error) {
    while ((error instanceof ExecutionException || error instanceof CompletionException) && error.getCause() != null) error = error.getCause();
    String status = error instanceof PulsarAdminException e ? " " + e.getStatusCode() : "";
    return error.getClass().getName().replaceAll(".*[.$]", "") + status + ": " + error.getMessage();
  }

  /** What differs from run to run, and its name. */
  static final String[][] NAMES = {
    {"\\s+", " "},
    {"\"reqId\":\\d+, \"remote\":\"[^\"]*\", \"local\":\"[^\"]*\"", "…"},
    {"(localhost|127\\.0\\.0\\.1)(/127\\.0\\.0\\.1)?:\\d+", "ADDRESS"},
    {"\\bstandalone-\\d+-\\d+\\b", "PRODUCER"},
    {"@[0-9a-f]{5,}\\b", "@HASH"},
    {"(consumer |consumerName='?)\\w{5}\\b", "$1NAME"},
    {"MultiTopicsConsumer-\\w{5}\\b", "MultiTopicsConsumer-NAME"},
    {"\\breader-[0-9a-f]{10}\\b", "reader-HASH"},
    {"\\b\\d+:(-?\\d+)\\b", "LEDGER:$1"},
    // Names of classes, traces of stacks, pages of the web server, and what Avro says.
    {"(java\\.util\\.concurrent\\.CompletionException: )+", ""},
    {"--- An unexpected error occurred in the server --- Message: (.*?) Stacktrace: .*", "$1"},
    {"HTTP \\d+ \\{ \"servlet\":.*?\"message\":\"(.*?)\", \"url\":.*?\\}", "$1"},
    {"org\\.apache\\.pulsar\\.broker\\.[\\w.$]+Exception: ", ""},
    {"org\\.apache\\.avro\\.SchemaValidationException: Unable to read schema: .*? using schema: .*?(?= caused by |\",…|$)", "unable to read schema"},
    {"\"errorMsg\":\"(.*?) caused by \\1\"", "\"errorMsg\":\"$1\""},
  };

  static String alike(String text) {
    String found = text.replace(RUN, "RUN");
    for (String[] each : NAMES) found = found.replaceAll(each[0], each[1]);
    return found.trim();
  }

  static PulsarClient client() { return CLIENT.get(); }

  static PulsarClient newClient() throws Exception { return PulsarClient.builder().serviceUrl(url).operationTimeout(WAIT, TimeUnit.SECONDS).build(); }

  static String text(Message<?> message) {
    if (message == null) return "nothing";
    return message.getData() == null ? "null" : new String(message.getData());
  }

  static List<String> numbered(int first, int end) { return IntStream.range(first, end).mapToObj(i -> "m" + i).toList(); }

  static ProducerBuilder<byte[]> unbatched(String topic) { return client().newProducer().topic(topic).enableBatching(false); }

  /** A producer whose batches end with `flush` alone. */
  static ProducerBuilder<byte[]> batched(String topic) { return client().newProducer().topic(topic).batchingMaxPublishDelay(1, TimeUnit.MINUTES); }

  static ConsumerBuilder<byte[]> consumer(String topic) { return client().newConsumer().topic(topic).subscriptionName("s").acknowledgmentGroupTime(0, TimeUnit.SECONDS); }

  static ConsumerBuilder<byte[]> consumer(String topic, SubscriptionType type) { return consumer(topic).subscriptionType(type); }

  static ConsumerBuilder<byte[]> shared(String topic) { return consumer(topic, SubscriptionType.Shared); }

  /** Send without waiting in between, and wait for all receipts. */
  static List<MessageId> send(Producer<byte[]> producer, List<String> texts) throws Exception {
    List<CompletableFuture<MessageId>> sent = new ArrayList<>();
    for (String each : texts) sent.add(producer.sendAsync(each.getBytes()));
    producer.flush();
    List<MessageId> found = new ArrayList<>();
    for (var each : sent) found.add(each.get(WAIT, TimeUnit.SECONDS));
    return found;
  }

  static List<MessageId> send(String topic, int count) throws Exception {
    try (var producer = unbatched(topic).create()) { return send(producer, numbered(0, count)); }
  }

  static <T> Message<T> next(Consumer<T> consumer) throws Exception {
    Message<T> found = consumer.receive(WAIT, TimeUnit.SECONDS);
    if (found == null) throw new AssertionError("no message");
    return found;
  }

  /** The next messages, acknowledged. */
  static List<String> received(Consumer<byte[]> consumer, int count) throws Exception {
    List<String> found = new ArrayList<>();
    for (int i = 0; i < count; i++) { Message<byte[]> m = next(consumer); found.add(text(m)); consumer.acknowledge(m); }
    return found;
  }

  static List<Message<byte[]>> taken(Consumer<byte[]> consumer, int count) throws Exception {
    List<Message<byte[]>> found = new ArrayList<>();
    for (int i = 0; i < count; i++) found.add(next(consumer));
    return found;
  }

  /** The messages that come until there is silence, not acknowledged. */
  static List<String> rest(Consumer<byte[]> consumer) throws Exception {
    List<String> found = new ArrayList<>();
    for (Message<byte[]> m; (m = consumer.receive(SILENCE, TimeUnit.MILLISECONDS)) != null; ) found.add(text(m));
    return found;
  }

  static String none(Consumer<?> consumer) throws Exception { return text(consumer.receive(SILENCE, TimeUnit.MILLISECONDS)); }

  static List<String> read(Reader<byte[]> reader, int count) throws Exception {
    List<String> found = new ArrayList<>();
    for (int i = 0; i < count; i++) found.add(text(reader.readNext(WAIT, TimeUnit.SECONDS)));
    return found;
  }

  /** Wait until something holds. Whether it does. */
  static boolean until(Callable<Boolean> holds) throws Exception {
    long end = System.nanoTime() + WAIT * 1_000_000_000L;
    while (!holds.call()) {
      if (System.nanoTime() > end) return false;
      Thread.sleep(30);
    }
    return true;
  }

  static long backlog(String topic) throws Exception { return admin.topics().getStats(topic, true).getSubscriptions().get("s").getMsgBacklog(); }

  static String at(MessageId id) {
    MessageIdAdv adv = (MessageIdAdv) id;
    return adv.getEntryId() + "/" + adv.getPartitionIndex() + "/" + adv.getBatchIndex() + "/" + adv.getBatchSize();
  }

  static <T> List<T> synced() { return Collections.synchronizedList(new ArrayList<>()); }
}
