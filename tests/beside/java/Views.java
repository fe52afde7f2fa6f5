import java.util.*;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.common.topics.TopicCompactionStrategy;

/** Table views and compacted topics. */
class Views extends Checks {
  /** Keeps the greater text. */
  public static class Greatest implements TopicCompactionStrategy<byte[]> {
    @Override public Schema<byte[]> getSchema() { return Schema.BYTES; }
    @Override public boolean shouldKeepLeft(byte[] left, byte[] right) { return left != null && right != null && new String(left).compareTo(new String(right)) > 0; }
  }

  static void put(Producer<byte[]> p, String key, String value) throws Exception {
    p.newMessage().key(key).value(value == null ? null : value.getBytes()).send();
  }

  static Map<String, String> map(TableView<byte[]> view) {
    var found = new TreeMap<String, String>();
    view.forEach((key, value) -> found.put(key, new String(value)));
    return found;
  }

  static void compact(String topic) throws Exception {
    admin.topics().triggerCompaction(topic);
    until(() -> admin.topics().compactionStatus(topic).status == LongRunningProcessStatus.Status.SUCCESS);
  }

  static List<String> compacted(String topic) throws Exception {
    var r = client().newReader().topic(topic).startMessageId(MessageId.earliest).readCompacted(true).create();
    List<String> found = new ArrayList<>();
    for (Message<byte[]> m; (m = r.readNext(SILENCE, TimeUnit.MILLISECONDS)) != null; ) found.add(m.getKey() + "=" + text(m));
    r.close();
    return found;
  }

  static void add() {
    tables();
    compaction();
  }

  static void tables() {
    checks.put("table-view/latest", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "b", "2");
      put(p, "a", "3");
      var view = client().newTableView().topic(s.topic).create();
      s.is("map", map(view));
      s.is("size", view.size() + " " + view.isEmpty() + " " + view.containsKey("a") + " " + view.containsKey("z") + " " + view.get("z"));
      s.is("sets", new TreeSet<>(view.keySet()) + " " + view.values().size() + " " + view.entrySet().size());
      put(p, "c", "4");
      s.is("later", until(() -> view.size() == 3));
    });
    checks.put("table-view/null-deletes", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "b", "2");
      var view = client().newTableView().topic(s.topic).create();
      put(p, "a", null);
      s.is("deleted", until(() -> view.size() == 1));
      s.is("map", map(view));
    });
    checks.put("table-view/empty-value", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "a", "");
      s.is("map", map(client().newTableView().topic(s.topic).create()));
    });
    checks.put("table-view/no-key", s -> {
      var p = unbatched(s.topic).create();
      p.send("x".getBytes());
      put(p, "a", "1");
      s.is("map", map(client().newTableView().topic(s.topic).create()));
    });
    checks.put("table-view/listeners", s -> {
      List<String> all = synced(), later = synced();
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      var view = client().newTableView().topic(s.topic).create();
      view.forEachAndListen((key, value) -> all.add(key + "=" + (value == null ? null : new String(value))));
      view.listen((key, value) -> later.add(key + "=" + (value == null ? null : new String(value))));
      put(p, "b", "2");
      put(p, "a", null);
      until(() -> all.size() == 3 && later.size() == 2);
      s.is("all", all);
      s.is("later", later);
    });
    checks.put("table-view/strategy", s -> {
      List<String> found = synced();
      var p = unbatched(s.topic).create();
      put(p, "a", "5");
      put(p, "a", "3");
      var view = client().newTableView().topic(s.topic).loadConf(Map.of("topicCompactionStrategyClassName", "Views$Greatest")).create();
      s.is("map", map(view));
      view.listen((key, value) -> found.add(key + "=" + new String(value)));
      put(p, "a", "4");
      put(p, "a", "7");
      s.is("later", until(() -> !found.isEmpty()));
      s.is("then", map(view));
      s.is("found", found);
    });
    checks.put("table-view/partitions", s -> {
      admin.topics().createPartitionedTopic(s.topic, 3);
      var p = unbatched(s.topic).create();
      for (int i = 0; i < 9; i++) put(p, "k" + i, "v" + i);
      var view = client().newTableView().topic(s.topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
      s.is("map", map(view));
      admin.topics().updatePartitionedTopic(s.topic, 4);
      var q = unbatched(s.topic + "-partition-3").create();
      put(q, "late", "v");
      s.is("later", until(() -> view.containsKey("late")));
    });
    checks.put("table-view/refresh", s -> {
      var p = unbatched(s.topic).create();
      var view = client().newTableView().topic(s.topic).create();
      for (int i = 0; i < 20; i++) put(p, "k" + i % 7, "v" + i);
      view.refresh();
      s.is("map", map(view));
    });
    checks.put("table-view/non-persistent", s -> {
      String topic = "non-persistent://public/default/" + s.short_;
      s.gets("view", () -> {
        var view = client().newTableView().topic(topic).create();
        put(unbatched(topic).create(), "a", "1");
        return until(() -> view.size() == 1);
      });
    });
    checks.put("table-view/subscription", s -> {
      unbatched(s.topic).create();
      var view = client().newTableView().topic(s.topic).subscriptionName("view").create();
      s.is("subscriptions", admin.topics().getSubscriptions(s.topic));
      s.gets("second", () -> client().newTableView().topic(s.topic).subscriptionName("view").create());
      view.close();
      s.is("gone", until(() -> admin.topics().getSubscriptions(s.topic).isEmpty()));
    });
    checks.put("table-view/schema", s -> {
      var p = client().newProducer(Schema.INT64).topic(s.topic).create();
      p.newMessage().key("a").value(7L).send();
      s.is("value", client().newTableView(Schema.INT64).topic(s.topic).create().get("a"));
      s.gets("other", () -> client().newTableView(Schema.STRING).topic(s.topic).create().size());
    });
    checks.put("table-view/refused", s -> {
      s.gets("no topic", () -> client().newTableView().create());
      s.gets("namespace", () -> client().newTableView().topic("public/none-" + RUN + "/t").create());
    });
    checks.put("table-view/compacted", s -> {
      var p = unbatched(s.topic).create();
      for (int i = 0; i < 10; i++) put(p, "k" + i % 3, "v" + i);
      put(p, "k0", null);
      compact(s.topic);
      put(p, "k3", "x");
      s.is("map", map(client().newTableView().topic(s.topic).create()));
    });
    checks.put("table-view/chunks-and-batches", s -> {
      var p = unbatched(s.topic).enableChunking(true).chunkMaxMessageSize(100).create();
      put(p, "a", "x".repeat(250));
      var q = batched(s.topic).create();
      q.newMessage().key("b").value("1".getBytes()).sendAsync();
      q.newMessage().key("b").value("2".getBytes()).sendAsync();
      q.flush();
      var view = client().newTableView().topic(s.topic).create();
      s.is("a", view.get("a").length);
      s.is("b", view.get("b"));
    });
  }

  static void compaction() {
    checks.put("compaction/reads", s -> {
      var p = unbatched(s.topic).create();
      for (int i = 0; i < 6; i++) put(p, "k" + i % 2, "v" + i);
      p.send("none".getBytes());
      put(p, "gone", "x");
      put(p, "gone", null);
      s.is("before", compacted(s.topic));
      compact(s.topic);
      s.is("after", compacted(s.topic));
      put(p, "k0", "new");
      s.is("and new", compacted(s.topic));
      s.is("all", rest(consumer(s.topic).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()).size());
    });
    checks.put("compaction/empty-value", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "b", "1");
      put(p, "a", "");
      compact(s.topic);
      s.is("after", compacted(s.topic));
    });
    checks.put("compaction/batches", s -> {
      var p = batched(s.topic).create();
      for (int i = 0; i < 6; i++) p.newMessage().key("k" + i % 2).value(("v" + i).getBytes()).sendAsync();
      p.newMessage().value("none".getBytes()).sendAsync();
      p.flush();
      p.newMessage().key("k0").value("last".getBytes()).sendAsync();
      p.flush();
      compact(s.topic);
      s.is("after", compacted(s.topic));
    });
    checks.put("compaction/subscription", s -> {
      var builder = consumer(s.topic).readCompacted(true).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
      var p = unbatched(s.topic).create();
      for (int i = 0; i < 6; i++) put(p, "k" + i % 2, "v" + i);
      compact(s.topic);
      try (var c = builder.subscribe()) { s.is("got", rest(c)); }
      try (var c = builder.clone().subscribe()) {
        s.is("again", received(c, 2));
        s.is("backlog", until(() -> backlog(s.topic) == 0));
        c.seek(MessageId.earliest);
        s.is("sought", rest(c));
      }
      s.does("failover", () -> builder.clone().subscriptionType(SubscriptionType.Failover).subscriptionName("f").subscribe().close());
      s.does("key shared", () -> builder.clone().subscriptionType(SubscriptionType.Key_Shared).subscriptionName("k").subscribe().close());
    });
    checks.put("compaction/last-ids", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "b", "2");
      put(p, "b", null);
      compact(s.topic);
      var r = client().newReader().topic(s.topic).startMessageId(MessageId.earliest).readCompacted(true).create();
      s.is("last", at(r.getLastMessageIds().get(0)));
      List<String> found = new ArrayList<>();
      while (r.hasMessageAvailable()) found.add(text(r.readNext(WAIT, TimeUnit.SECONDS)));
      s.is("found", found);
    });
    checks.put("compaction/latest-inclusive", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "a", "2");
      compact(s.topic);
      var r = client().newReader().topic(s.topic).startMessageId(MessageId.latest).startMessageIdInclusive().readCompacted(true).create();
      s.is("available", r.hasMessageAvailable());
      s.is("got", r.readNext(SILENCE, TimeUnit.MILLISECONDS));
    });
    checks.put("compaction/everything-deleted", s -> {
      var p = unbatched(s.topic).create();
      put(p, "a", "1");
      put(p, "a", null);
      compact(s.topic);
      s.is("after", compacted(s.topic));
      s.is("available", client().newReader().topic(s.topic).startMessageId(MessageId.earliest).readCompacted(true).create().hasMessageAvailable());
    });
    checks.put("compaction/twice", s -> {
      var p = unbatched(s.topic).create();
      for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) put(p, "k" + (i + round) % 3, "v" + round + i);
        compact(s.topic);
        s.is("round", compacted(s.topic));
      }
    });
    checks.put("compaction/calls", s -> {
      s.does("missing", () -> admin.topics().triggerCompaction(s.topic));
      s.gets("status missing", () -> admin.topics().compactionStatus(s.topic).status);
      unbatched(s.topic).create();
      s.gets("status", () -> admin.topics().compactionStatus(s.topic).status);
      s.does("empty", () -> compact(s.topic));
      s.gets("status", () -> admin.topics().compactionStatus(s.topic).status);
      s.does("non-persistent", () -> { unbatched("non-persistent://public/default/" + s.short_).create(); admin.topics().triggerCompaction("non-persistent://public/default/" + s.short_); });
    });
    checks.put("compaction/chunks", s -> {
      var p = unbatched(s.topic).enableChunking(true).chunkMaxMessageSize(100).create();
      put(p, "a", "x".repeat(250));
      put(p, "b", "y".repeat(150));
      put(p, "a", "short");
      compact(s.topic);
      s.is("after", compacted(s.topic).stream().map(each -> each.substring(0, 3)).toList());
    });
  }
}
