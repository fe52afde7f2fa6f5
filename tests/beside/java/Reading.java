import java.util.*;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;

/** Readers: where they start, what is available, ranges of keys. */
class Reading extends Checks {
  static ReaderBuilder<byte[]> reader(String topic, MessageId from) { return client().newReader().topic(topic).startMessageId(from); }

  static List<String> rest(Reader<byte[]> reader) throws Exception {
    List<String> found = new ArrayList<>();
    for (Message<byte[]> m; (m = reader.readNext(SILENCE, TimeUnit.MILLISECONDS)) != null; ) found.add(text(m));
    return found;
  }

  static void add() {
    checks.put("reader/starts", s -> {
      var ids = send(s.topic, 4);
      s.is("earliest", rest(reader(s.topic, MessageId.earliest).create()));
      s.is("latest", rest(reader(s.topic, MessageId.latest).create()));
      s.is("id", rest(reader(s.topic, ids.get(1)).create()));
      s.is("inclusive", rest(reader(s.topic, ids.get(1)).startMessageIdInclusive().create()));
      s.is("latest inclusive", rest(reader(s.topic, MessageId.latest).startMessageIdInclusive().create()));
      s.is("last", rest(reader(s.topic, ids.get(3)).create()));
    });
    checks.put("reader/in-batch", s -> {
      send(batched(s.topic).create(), numbered(0, 4));
      var r = reader(s.topic, MessageId.earliest).create();
      r.readNext();
      var id = r.readNext().getMessageId();
      s.is("after", rest(reader(s.topic, id).create()));
      s.is("inclusive", rest(reader(s.topic, id).startMessageIdInclusive().create()));
      s.is("latest inclusive", rest(reader(s.topic, MessageId.latest).startMessageIdInclusive().create()));
    });
    checks.put("reader/by-time", s -> {
      send(s.topic, 2);
      Thread.sleep(2500);
      send(unbatched(s.topic).create(), List.of("late"));
      s.is("second", rest(client().newReader().topic(s.topic).startMessageFromRollbackDuration(2, TimeUnit.SECONDS).create()));
      s.is("hour", rest(client().newReader().topic(s.topic).startMessageFromRollbackDuration(1, TimeUnit.HOURS).create()));
    });
    checks.put("reader/refused", s -> {
      s.gets("no start", () -> client().newReader().topic(s.topic).create());
      s.gets("two starts", () -> reader(s.topic, MessageId.earliest).startMessageFromRollbackDuration(1, TimeUnit.HOURS).create());
      s.gets("no topic", () -> client().newReader().startMessageId(MessageId.earliest).create());
      s.gets("compacted non-persistent", () -> reader("non-persistent://public/default/" + s.short_, MessageId.earliest).readCompacted(true).create());
    });
    checks.put("reader/available", s -> {
      var r = reader(s.topic, MessageId.earliest).create();
      s.is("empty", r.hasMessageAvailable());
      send(s.topic, 2);
      s.is("two", r.hasMessageAvailable());
      r.readNext();
      s.is("one", r.hasMessageAvailable());
      r.readNext();
      s.is("none", r.hasMessageAvailable());
      s.is("latest", reader(s.topic, MessageId.latest).create().hasMessageAvailable());
      s.is("latest inclusive", reader(s.topic, MessageId.latest).startMessageIdInclusive().create().hasMessageAvailable());
      r.seek(MessageId.earliest);
      s.is("sought", r.hasMessageAvailable());
      r.seek(MessageId.latest);
      s.is("sought latest", r.hasMessageAvailable());
      r.seek(0);
      s.is("sought time", r.hasMessageAvailable());
      r.seek(System.currentTimeMillis() + 100000);
      s.is("sought future", r.hasMessageAvailable());
    });
    checks.put("reader/available-batch", s -> {
      send(batched(s.topic).create(), numbered(0, 3));
      var r = reader(s.topic, MessageId.earliest).create();
      for (int i = 0; i < 3; i++) { r.readNext(); s.is("left", r.hasMessageAvailable()); }
    });
    checks.put("reader/seek", s -> {
      var ids = send(s.topic, 4);
      var r = reader(s.topic, MessageId.earliest).create();
      rest(r);
      r.seek(ids.get(1));
      s.is("id", rest(r));
      r.seek(0);
      s.is("time", rest(r));
      r.seek(topic -> MessageId.earliest);
      s.is("function", rest(r));
    });
    checks.put("reader/seek-inclusive", s -> {
      var ids = send(s.topic, 4);
      var r = reader(s.topic, MessageId.earliest).startMessageIdInclusive().create();
      rest(r);
      r.seek(ids.get(2));
      s.is("id", rest(r));
    });
    checks.put("reader/key-range", s -> {
      try (var p = unbatched(s.topic).create()) {
        for (int i = 0; i < 10; i++) p.newMessage().key("key" + i).value(("m" + i).getBytes()).send();
      }
      s.is("low", rest(reader(s.topic, MessageId.earliest).keyHashRange(Range.of(0, 32767)).create()));
      s.is("high", rest(reader(s.topic, MessageId.earliest).keyHashRange(Range.of(32768, 65535)).create()));
      s.gets("bad", () -> reader(s.topic, MessageId.earliest).keyHashRange(Range.of(0, 70000)).create());
    });
    checks.put("reader/subscription", s -> {
      var r = reader(s.topic, MessageId.earliest).subscriptionName("mine").readerName("r").create();
      s.is("stats", admin.topics().getStats(s.topic).getSubscriptions().keySet());
      s.is("durable", admin.topics().getStats(s.topic).getSubscriptions().get("mine").isDurable());
      s.is("consumer", admin.topics().getStats(s.topic).getSubscriptions().get("mine").getConsumers().get(0).getConsumerName());
      s.gets("same name", () -> reader(s.topic, MessageId.earliest).subscriptionName("mine").create());
      r.close();
      s.is("gone", until(() -> admin.topics().getSubscriptions(s.topic).isEmpty()));
      s.is("prefix", reader(s.topic, MessageId.earliest).subscriptionRolePrefix("role").create().getTopic());
      s.is("named", admin.topics().getSubscriptions(s.topic).get(0).replaceAll("-[0-9a-f]+$", "-HASH"));
    });
    checks.put("reader/listener", s -> {
      List<String> found = synced();
      reader(s.topic, MessageId.earliest).readerListener((r, m) -> found.add(text(m))).create();
      send(s.topic, 3);
      until(() -> found.size() == 3);
      s.is("found", found);
    });
    checks.put("reader/partitions", s -> {
      admin.topics().createPartitionedTopic(s.topic, 3);
      send(unbatched(s.topic).create(), numbered(0, 6));
      var r = reader(s.topic, MessageId.earliest).create();
      s.is("all", new TreeSet<>(rest(r)));
      s.is("available", r.hasMessageAvailable());
      s.is("last", r.getLastMessageIds().size());
      s.is("partition", reader(s.topic + "-partition-1", MessageId.earliest).create().hasMessageAvailable());
    });
    checks.put("reader/multi-topics", s -> {
      send(s.topic + "a", 2);
      send(s.topic + "b", 2);
      var r = client().newReader().topics(List.of(s.topic + "a", s.topic + "b")).startMessageId(MessageId.earliest).create();
      s.is("all", rest(r).stream().sorted().toList());
      s.gets("id", () -> client().newReader().topics(List.of(s.topic + "a", s.topic + "b")).startMessageId(send(s.topic + "a", 1).get(0)).create());
    });
    checks.put("reader/end-of-topic", s -> {
      send(s.topic, 2);
      var r = reader(s.topic, MessageId.earliest).create();
      s.is("before", r.hasReachedEndOfTopic());
      admin.topics().terminateTopic(s.topic);
      s.is("read", rest(r));
      s.is("after", until(r::hasReachedEndOfTopic));
      s.is("available", r.hasMessageAvailable());
    });
    checks.put("reader/interceptor", s -> {
      List<String> found = synced();
      send(s.topic, 1);
      var r = reader(s.topic, MessageId.earliest).intercept(new ReaderInterceptor<byte[]>() {
        @Override public void close() { found.add("close"); }
        @Override public Message<byte[]> beforeRead(Reader<byte[]> r, Message<byte[]> m) { found.add("read " + text(m)); return m; }
        @Override public void onPartitionsChange(String topic, int partitions) { }
      }).create();
      r.readNext();
      r.close();
      s.is("found", found);
    });
    checks.put("reader/closed", s -> {
      var r = reader(s.topic, MessageId.earliest).create();
      r.close();
      s.gets("read", r::readNext);
      s.gets("available", r::hasMessageAvailable);
      s.does("seek", () -> r.seek(MessageId.earliest));
      s.is("connected", r.isConnected());
    });
    checks.put("reader/retained", s -> {
      var c = consumer(s.topic).subscribe();
      send(s.topic, 3);
      received(c, 3);
      s.is("same ledger", rest(reader(s.topic, MessageId.earliest).create()));
    });
    checks.put("reader/unloaded", s -> {
      send(s.topic, 4);
      var r = reader(s.topic, MessageId.earliest).create();
      read(r, 2);
      admin.topics().unload(s.topic);
      s.is("rest", rest(r));
    });
    checks.put("reader/message-by-admin", s -> {
      var id = (MessageIdAdv) send(s.topic, 3).get(1);
      s.gets("by id", () -> admin.topics().getMessagesById(s.topic, id.getLedgerId(), id.getEntryId()).stream().map(Checks::text).toList());
      s.gets("beyond", () -> admin.topics().getMessagesById(s.topic, id.getLedgerId(), 99));
      s.gets("examine earliest", () -> admin.topics().examineMessage(s.topic, "earliest", 2));
      s.gets("examine latest", () -> admin.topics().examineMessage(s.topic, "latest", 1));
      s.gets("examine beyond", () -> admin.topics().examineMessage(s.topic, "latest", 10));
      s.gets("id by time", () -> at(admin.topics().getMessageIdByTimestamp(s.topic, 0)));
      s.gets("last", () -> at(admin.topics().getLastMessageId(s.topic)));
    });
  }
}
