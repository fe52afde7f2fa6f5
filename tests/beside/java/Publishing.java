import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.interceptor.ProducerInterceptor;
import org.apache.pulsar.client.impl.ChunkMessageIdImpl;
import org.apache.pulsar.client.impl.TypedMessageBuilderImpl;

/** Producers: what messages carry, ids, batches, chunks, access modes, deduplication, routing, interceptors, limits, stats. */
class Publishing extends Checks {
  static void add() {
    messages();
    batches();
    chunks();
    access();
    sequences();
    routing();
    interceptors();
    limits();
  }

  static void messages() {
    checks.put("message/fields", s -> {
      var c = consumer(s.topic).subscribe();
      unbatched(s.topic).producerName("p").create().newMessage().key("k").orderingKey("o".getBytes()).eventTime(77).property("a", "1")
          .properties(Map.of("b", "2")).sequenceId(5).value("x".getBytes()).send();
      var m = next(c);
      s.is("key", m.getKey());
      s.is("ordering", m.getOrderingKey());
      s.is("event", m.getEventTime());
      s.is("properties", new TreeMap<>(m.getProperties()));
      s.is("sequence", m.getSequenceId());
      s.is("producer", m.getProducerName());
      s.is("published", m.getPublishTime() > 0);
      s.is("topic", m.getTopicName());
      s.is("size", m.size());
      s.is("id", at(m.getMessageId()));
      s.is("redelivery", m.getRedeliveryCount());
      s.is("schema version", m.getSchemaVersion() == null ? null : m.getSchemaVersion().length);
      s.is("replicated", m.isReplicated() + " " + m.getReplicatedFrom());
      s.is("broker's", m.hasBrokerPublishTime() + " " + m.hasIndex());
      s.is("encryption", m.getEncryptionCtx().isPresent());
    });
    checks.put("message/bare", s -> {
      var c = consumer(s.topic).subscribe();
      unbatched(s.topic).create().send(new byte[0]);
      var m = next(c);
      s.is("key", m.hasKey() + " " + m.getKey() + " " + m.hasOrderingKey());
      s.is("event", m.getEventTime());
      s.is("data", m.getData().length);
      s.is("sequence", m.getSequenceId());
      s.is("properties", m.getProperties());
    });
    checks.put("message/null-value", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).create();
      p.newMessage().key("k").value(null).send();
      p.newMessage().key("k").send();
      for (int i = 0; i < 2; i++) { var m = next(c); s.is("value", m.getValue()); s.is("data", m.getData()); s.is("key", m.getKey()); }
    });
    checks.put("message/null-value-batched", s -> {
      var c = consumer(s.topic).subscribe();
      var p = batched(s.topic).create();
      p.newMessage().key("k").value(null).sendAsync();
      p.newMessage().key("l").value("x".getBytes()).sendAsync();
      p.flush();
      for (int i = 0; i < 2; i++) { var m = next(c); s.is(m.getKey(), m.getValue()); }
    });
    checks.put("message/null-string", s -> {
      var c = client().newConsumer(Schema.STRING).topic(s.topic).subscriptionName("s").subscribe();
      client().newProducer(Schema.STRING).topic(s.topic).create().newMessage().value(null).send();
      s.is("value", next(c).getValue());
    });
    checks.put("message/key-bytes", s -> {
      var c = consumer(s.topic).subscribe();
      unbatched(s.topic).create().newMessage().keyBytes(new byte[] {0, (byte) 200, 3}).value("x".getBytes()).send();
      var m = next(c);
      s.is("base64", m.hasBase64EncodedKey());
      s.is("bytes", Arrays.toString(m.getKeyBytes()));
      s.is("key", m.getKey());
    });
    checks.put("message/negative-event-time", s -> s.gets("sent", () -> unbatched(s.topic).create().newMessage().eventTime(-1)));
    checks.put("message/properties-odd", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).create();
      p.newMessage().property("", "empty").property("ünï", "cødé \u2603").property("e", "").value("x".getBytes()).send();
      s.is("properties", new TreeMap<>(next(c).getProperties()));
      s.gets("null", () -> p.newMessage().property("n", null));
    });
    checks.put("message/replication-clusters", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).create();
      s.does("named", () -> p.newMessage().replicationClusters(List.of("elsewhere")).value("a".getBytes()).send());
      s.does("none", () -> p.newMessage().disableReplication().value("b".getBytes()).send());
      s.is("got", received(c, 2));
    });
    checks.put("message/compression", s -> {
      var c = consumer(s.topic).subscribe();
      for (var type : CompressionType.values())
        for (boolean batching : List.of(true, false)) {
          try (var p = client().newProducer().topic(s.topic).compressionType(type).enableBatching(batching).create()) { send(p, List.of("x".repeat(9000))); }
          s.is(type + "-" + batching, text(next(c)).length());
        }
    });
  }

  static void batches() {
    checks.put("batch/ids", s -> {
      var ids = send(batched(s.topic).create(), numbered(0, 3));
      s.is("ids", ids.stream().map(Checks::at).toList());
      s.is("same entry", ids.get(0).compareTo(ids.get(1)));
      s.is("single", at(unbatched(s.topic).create().send("x".getBytes())));
    });
    checks.put("batch/of-one", s -> s.is("id", at(send(batched(s.topic).create(), List.of("x")).get(0))));
    checks.put("batch/max-messages", s -> s.is("ids", send(batched(s.topic).batchingMaxMessages(2).create(), numbered(0, 5)).stream().map(Checks::at).toList()));
    checks.put("batch/max-bytes", s -> s.is("ids",
        send(batched(s.topic).batchingMaxBytes(100).create(), List.of("x".repeat(60), "y".repeat(60), "z".repeat(60))).stream().map(Checks::at).toList()));
    checks.put("batch/key-based", s -> {
      var c = consumer(s.topic).subscribe();
      var p = batched(s.topic).batcherBuilder(BatcherBuilder.KEY_BASED).create();
      for (int i = 0; i < 6; i++) p.newMessage().key("k" + i % 2).value(("m" + i).getBytes()).sendAsync();
      p.flush();
      var got = new TreeSet<String>();
      for (var m : taken(c, 6)) got.add(m.getKey() + text(m) + at(m.getMessageId()).substring(1));
      s.is("got", got);
      s.is("entries", admin.topics().getInternalStats(s.topic).numberOfEntries);
    });
    checks.put("batch/stats", s -> {
      send(batched(s.topic).create(), numbered(0, 7));
      var stats = admin.topics().getStats(s.topic);
      s.is("in", stats.getMsgInCounter());
      s.is("entries", admin.topics().getInternalStats(s.topic).numberOfEntries);
    });
    checks.put("batch/settings-refused", s -> {
      s.gets("delay", () -> client().newProducer().batchingMaxPublishDelay(-1, TimeUnit.SECONDS));
      s.gets("pending", () -> client().newProducer().maxPendingMessages(-1));
      s.gets("messages", () -> client().newProducer().batchingMaxMessages(-5).topic(s.topic).create().isConnected());
      s.gets("topic", () -> client().newProducer().topic(" "));
      s.gets("name", () -> client().newProducer().producerName("").topic(s.topic).create().getProducerName());
    });
  }

  static Producer<byte[]> chunked(String topic) throws Exception { return unbatched(topic).enableChunking(true).chunkMaxMessageSize(100).create(); }

  /** Send one chunk of a message in two. */
  static void chunk(Producer<byte[]> p, String uuid, int id) throws Exception {
    var builder = (TypedMessageBuilderImpl<byte[]>) p.newMessage().value((uuid + id).getBytes());
    builder.getMetadataBuilder().setUuid(uuid).setNumChunksFromMsg(2).setTotalChunkMsgSize(4).setChunkId(id);
    builder.send();
  }

  static void chunks() {
    for (var type : SubscriptionType.values())
      checks.put("chunk/" + type, s -> {
        var c = consumer(s.topic, type).subscribe();
        var id = chunked(s.topic).newMessage().key("k").property("a", "b").value("x".repeat(250).getBytes()).send();
        var m = next(c);
        s.is("size", m.getData().length);
        s.is("key", m.getKey() + m.getProperties());
        s.is("ids", id.getClass().getSimpleName() + " " + at(id) + " " + at(((ChunkMessageIdImpl) id).getFirstChunkMessageId()) + " " + m.getMessageId().equals(id));
        s.is("entries", admin.topics().getInternalStats(s.topic).numberOfEntries);
        c.acknowledge(m);
        s.is("acknowledged", until(() -> backlog(s.topic) == 0));
      });
    checks.put("chunk/with-batches", s -> s.gets("producer", () -> client().newProducer().topic(s.topic).enableChunking(true).enableBatching(true).create()));
    checks.put("chunk/redelivered", s -> {
      var c = shared(s.topic).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
      chunked(s.topic).send("x".repeat(250).getBytes());
      c.negativeAcknowledge(next(c));
      s.is("again", rest(c).size());
    });
    checks.put("chunk/max-pending", s -> {
      var c = consumer(s.topic).maxPendingChunkedMessage(1).autoAckOldestChunkedMessageOnQueueFull(true).subscribe();
      var p = unbatched(s.topic).create();
      chunk(p, "a", 0);
      chunk(p, "b", 0);
      chunk(p, "b", 1);
      s.is("got", next(c));
      s.is("then", none(c));
      s.is("backlog", backlog(s.topic));
    });
    checks.put("chunk/max-pending-redelivers", s -> {
      var c = shared(s.topic).maxPendingChunkedMessage(1).autoAckOldestChunkedMessageOnQueueFull(false).subscribe();
      var p = unbatched(s.topic).create();
      chunk(p, "a", 0);
      chunk(p, "b", 0);
      chunk(p, "b", 1);
      s.is("got", received(c, 1));
      s.is("backlog", until(() -> backlog(s.topic) == 1));
    });
    checks.put("chunk/expired", s -> {
      var c = consumer(s.topic).expireTimeOfIncompleteChunkedMessage(1, TimeUnit.SECONDS).autoAckOldestChunkedMessageOnQueueFull(true).subscribe();
      var p = unbatched(s.topic).create();
      chunk(p, "a", 0);
      s.is("nothing", none(c));
      s.is("backlog", until(() -> backlog(s.topic) == 0));
    });
    checks.put("chunk/out-of-order", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).create();
      chunk(p, "a", 1);
      chunk(p, "b", 0);
      chunk(p, "b", 0);
      chunk(p, "b", 1);
      s.is("got", rest(c));
    });
    checks.put("chunk/seek", s -> {
      var c = consumer(s.topic).startMessageIdInclusive().subscribe();
      var p = chunked(s.topic);
      var first = p.send("a".repeat(250).getBytes());
      p.send("b".repeat(250).getBytes());
      received(c, 2);
      c.seek(first);
      s.is("again", rest(c).stream().map(each -> each.substring(0, 1)).toList());
    });
    checks.put("chunk/reader", s -> {
      var id = chunked(s.topic).send("a".repeat(250).getBytes());
      unbatched(s.topic).create().send("b".getBytes());
      s.is("inclusive", read(client().newReader().topic(s.topic).startMessageId(id).startMessageIdInclusive().create(), 1).get(0).length());
      s.is("after", read(client().newReader().topic(s.topic).startMessageId(id).create(), 1));
    });
  }

  static void access() {
    checks.put("access/exclusive", s -> {
      var builder = unbatched(s.topic);
      var first = builder.clone().accessMode(ProducerAccessMode.Exclusive).producerName("a").create();
      s.gets("second", () -> builder.clone().accessMode(ProducerAccessMode.Exclusive).producerName("b").create());
      s.gets("beside", () -> builder.clone().producerName("c").create());
      first.close();
      s.gets("later", () -> builder.clone().accessMode(ProducerAccessMode.Exclusive).producerName("d").create().getProducerName());
    });
    checks.put("access/exclusive-after-shared", s -> {
      unbatched(s.topic).producerName("a").create();
      s.gets("exclusive", () -> unbatched(s.topic).accessMode(ProducerAccessMode.Exclusive).producerName("b").create());
      var waits = unbatched(s.topic).accessMode(ProducerAccessMode.WaitForExclusive).producerName("c").createAsync();
      s.gets("waits", () -> waits.get(SILENCE, TimeUnit.MILLISECONDS));
      waits.cancel(true);
    });
    checks.put("access/wait-for-exclusive", s -> {
      var builder = unbatched(s.topic).accessMode(ProducerAccessMode.WaitForExclusive);
      var first = builder.clone().producerName("a").create();
      var second = builder.clone().producerName("b").createAsync();
      var third = builder.clone().producerName("c").createAsync();
      s.is("done", second.isDone() + " " + third.isDone());
      first.close();
      var next = second.get(WAIT, TimeUnit.SECONDS);
      s.is("second", next.getProducerName() + " " + third.isDone());
      next.close();
      s.is("third", third.get(WAIT, TimeUnit.SECONDS).getProducerName());
    });
    checks.put("access/fencing", s -> {
      try (var own = newClient()) {
        var builder = own.newProducer().topic(s.topic).enableBatching(false);
        var first = builder.clone().accessMode(ProducerAccessMode.Exclusive).producerName("a").create();
        first.send("x".getBytes());
        var second = builder.clone().accessMode(ProducerAccessMode.ExclusiveWithFencing).producerName("b").create();
        s.gets("fenced", () -> { try { return first.send("y".getBytes()); } catch (PulsarClientException e) { return e.getClass().getSimpleName(); } });
        s.is("connected", first.isConnected());
        s.does("sends", () -> second.send("z".getBytes()));
      }
    });
    checks.put("access/fencing-shared", s -> {
      try (var own = newClient()) {
        var builder = own.newProducer().topic(s.topic).enableBatching(false).sendTimeout(5, TimeUnit.SECONDS);
        var first = builder.clone().producerName("a").create();
        builder.clone().accessMode(ProducerAccessMode.ExclusiveWithFencing).producerName("b").create();
        s.gets("fenced", () -> { try { return first.send("y".getBytes()); } catch (PulsarClientException e) { return e.getClass().getSimpleName(); } });
      }
    });
    checks.put("access/name-taken", s -> {
      unbatched(s.topic).producerName("same").create();
      s.gets("second", () -> unbatched(s.topic).producerName("same").create());
    });
    checks.put("producer/closed", s -> {
      var p = unbatched(s.topic).create();
      s.is("connected", p.isConnected());
      p.close();
      s.does("send", () -> p.send("x".getBytes()));
      s.does("flush", p::flush);
      s.does("close", p::close);
      s.is("connected", p.isConnected());
    });
    checks.put("producer/names", s -> {
      var p = client().newProducer().topic(s.topic).create();
      s.is("generated", p.getProducerName());
      s.is("topic", p.getTopic());
      s.is("last", p.getLastSequenceId());
      s.gets("relative", () -> client().newProducer().topic(s.short_).create().getTopic());
      s.gets("invalid", () -> client().newProducer().topic("persistent://a/b/c/d/e").create());
      s.gets("scheme", () -> client().newProducer().topic("http://public/default/x").create());
      s.gets("two parts", () -> client().newProducer().topic("default/x").create());
    });
    checks.put("producer/properties", s -> {
      client().newProducer().topic(s.topic).producerName("p").property("team", "blue").create();
      var found = admin.topics().getStats(s.topic).getPublishers().get(0);
      s.is("metadata", found.getMetadata());
      s.is("name", found.getProducerName() + " " + found.getAccessMode() + " " + found.isSupportsPartialProducer());
      s.is("version", found.getClientVersion());
    });
    checks.put("client/closed", s -> {
      var own = newClient();
      var c = own.newConsumer().topic(s.topic).subscriptionName("s").subscribe();
      var p = own.newProducer().topic(s.topic).create();
      own.close();
      s.gets("producer", () -> own.newProducer().topic(s.topic).create());
      s.gets("consumer", () -> own.newConsumer().topic(s.topic).subscriptionName("t").subscribe());
      s.does("send", () -> p.send("x".getBytes()));
      s.gets("receive", () -> c.receive());
      s.is("connected", p.isConnected() + " " + c.isConnected() + " " + own.isClosed());
    });
    checks.put("client/no-broker", s -> {
      try (var own = PulsarClient.builder().serviceUrl("pulsar://127.0.0.1:1").operationTimeout(1, TimeUnit.SECONDS).lookupTimeout(1, TimeUnit.SECONDS).build()) {
        s.gets("producer", () -> { try { return own.newProducer().topic(s.topic).create(); } catch (PulsarClientException e) { return e.getClass().getSimpleName(); } });
      }
    });
    checks.put("client/transactions-off", s -> {
      s.gets("client", () -> {
        try (var own = PulsarClient.builder().serviceUrl(url).enableTransaction(true).operationTimeout(5, TimeUnit.SECONDS).build()) {
          return own.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get(WAIT, TimeUnit.SECONDS);
        }
      });
      s.gets("not asked", () -> client().newTransaction());
    });
  }

  static void sequences() {
    checks.put("sequence/default", s -> {
      var p = unbatched(s.topic).create();
      s.is("before", p.getLastSequenceId());
      send(p, numbered(0, 3));
      s.is("after", p.getLastSequenceId());
    });
    checks.put("sequence/initial", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).initialSequenceId(41).create();
      p.send("x".getBytes());
      s.is("sequence", next(c).getSequenceId() + " " + p.getLastSequenceId());
    });
    for (boolean batching : List.of(true, false))
      checks.put("dedup/batching-" + batching, s -> {
        String ns = s.namespace(), topic = "persistent://" + ns + "/t";
        admin.namespaces().setDeduplicationStatus(ns, true);
        var c = consumer(topic).subscribe();
        var p = client().newProducer().topic(topic).producerName("p").enableBatching(batching).create();
        var ids = new ArrayList<String>();
        for (long id : new long[] {0, 1, 1, 5, 3, 5, 6}) ids.add(at(p.newMessage().sequenceId(id).value(("m" + id).getBytes()).send()));
        s.is("ids", ids);
        s.is("last", p.getLastSequenceId());
        p.close();
        var again = client().newProducer().topic(topic).producerName("p").enableBatching(batching).create();
        s.is("again", again.getLastSequenceId());
        s.is("old", at(again.newMessage().sequenceId(2).value("old".getBytes()).send()));
        s.is("next", at(again.send("next".getBytes())));
        s.is("got", rest(c));
      });
    checks.put("dedup/initial-sequence", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setDeduplicationStatus(ns, true);
      try (var p = unbatched(topic).producerName("p").initialSequenceId(10).create()) { p.send("a".getBytes()); s.is("last", p.getLastSequenceId()); }
      try (var p = unbatched(topic).producerName("p").initialSequenceId(3).create()) { s.is("again", p.getLastSequenceId()); s.is("id", at(p.send("b".getBytes()))); }
      try (var p = unbatched(topic).producerName("q").create()) { s.is("other", p.getLastSequenceId()); }
    });
    checks.put("dedup/off", s -> {
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).producerName("p").create();
      for (long id : new long[] {4, 4, 2}) p.newMessage().sequenceId(id).value(("m" + id).getBytes()).send();
      s.is("got", rest(c));
      s.is("last", p.getLastSequenceId());
      p.close();
      s.is("again", unbatched(s.topic).producerName("p").create().getLastSequenceId());
    });
    checks.put("dedup/chunks", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setDeduplicationStatus(ns, true);
      var c = consumer(topic).subscribe();
      var p = unbatched(topic).producerName("p").enableChunking(true).chunkMaxMessageSize(100).create();
      p.newMessage().sequenceId(1).value("a".repeat(250).getBytes()).send();
      s.is("again", at(p.newMessage().sequenceId(1).value("b".repeat(250).getBytes()).send()));
      p.newMessage().sequenceId(2).value("c".repeat(250).getBytes()).send();
      s.is("got", rest(c).stream().map(each -> each.substring(0, 1)).toList());
    });
  }

  static void routing() {
    for (var mode : List.of(MessageRoutingMode.SinglePartition, MessageRoutingMode.RoundRobinPartition))
      checks.put("routing/" + mode, s -> {
        admin.topics().createPartitionedTopic(s.topic, 3);
        var p = unbatched(s.topic).messageRoutingMode(mode).create();
        var ids = send(p, numbered(0, 6));
        s.is("counts", ids.stream().collect(Collectors.groupingBy(id -> ((MessageIdAdv) id).getPartitionIndex(), Collectors.counting())).values());
        s.is("partitions", p.getNumOfPartitions());
      });
    for (var scheme : HashingScheme.values())
      checks.put("routing/keys-" + scheme, s -> {
        admin.topics().createPartitionedTopic(s.topic, 5);
        var p = unbatched(s.topic).hashingScheme(scheme).create();
        var found = new ArrayList<Integer>();
        for (int i = 0; i < 8; i++) found.add(((MessageIdAdv) p.newMessage().key("key" + i).value("x".getBytes()).send()).getPartitionIndex());
        s.is("partitions", found);
      });
    checks.put("routing/custom", s -> {
      admin.topics().createPartitionedTopic(s.topic, 3);
      var p = unbatched(s.topic).messageRoutingMode(MessageRoutingMode.CustomPartition).messageRouter(new MessageRouter() {
        @Override public int choosePartition(Message<?> m, TopicMetadata meta) { return m.getKey().equals("bad") ? 7 : meta.numPartitions() - 1; }
      }).create();
      s.is("partition", ((MessageIdAdv) p.newMessage().key("k").value("x".getBytes()).send()).getPartitionIndex());
      s.does("bad", () -> p.newMessage().key("bad").value("x".getBytes()).send());
      s.gets("without router", () -> unbatched(s.topic).messageRoutingMode(MessageRoutingMode.CustomPartition).create());
    });
    checks.put("routing/lazy", s -> {
      admin.topics().createPartitionedTopic(s.topic, 4);
      var p = unbatched(s.topic).enableLazyStartPartitionedProducers(true).accessMode(ProducerAccessMode.Shared).messageRoutingMode(MessageRoutingMode.SinglePartition).create();
      s.is("before", admin.topics().getPartitionedStats(s.topic, false).getPublishers().size());
      p.send("x".getBytes());
      s.is("metadata", admin.topics().getPartitionedTopicMetadata(s.topic).partitions);
    });
    checks.put("partitions/increased", s -> {
      admin.topics().createPartitionedTopic(s.topic, 1);
      var p = unbatched(s.topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
      var c = consumer(s.topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
      admin.topics().updatePartitionedTopic(s.topic, 3);
      s.is("learned", until(() -> p.getNumOfPartitions() == 3));
      until(() -> { for (int i = 0; i < 3; i++) if (!admin.topics().getSubscriptions(s.topic + "-partition-" + i).contains("s")) return false; return true; });
      send(p, numbered(0, 6));
      s.is("got", new TreeSet<>(received(c, 6)));
      s.does("fewer", () -> admin.topics().updatePartitionedTopic(s.topic, 2));
      s.does("same", () -> admin.topics().updatePartitionedTopic(s.topic, 3));
    });
    checks.put("partitions/metadata", s -> {
      admin.topics().createPartitionedTopic(s.topic, 2);
      s.gets("partitioned", () -> client().getPartitionsForTopic(s.topic).get());
      s.gets("plain", () -> client().getPartitionsForTopic(s.topic + "-plain").get());
      s.gets("missing", () -> client().getPartitionsForTopic(s.topic + "-missing", false).get());
      s.gets("partition", () -> client().getPartitionsForTopic(s.topic + "-partition-0").get());
      s.gets("beyond", () -> client().newProducer().topic(s.topic + "-partition-7").create().getTopic());
      s.gets("namespace", () -> client().getPartitionsForTopic("persistent://public/none-" + RUN + "/t").get());
    });
    checks.put("partitions/create-errors", s -> {
      s.does("first", () -> admin.topics().createPartitionedTopic(s.topic, 2));
      s.does("again", () -> admin.topics().createPartitionedTopic(s.topic, 2));
      s.does("plain", () -> admin.topics().createNonPartitionedTopic(s.topic));
      s.does("zero", () -> admin.topics().createPartitionedTopic(s.topic + "-0", 0));
      s.does("plain again", () -> { admin.topics().createNonPartitionedTopic(s.topic + "-p"); admin.topics().createNonPartitionedTopic(s.topic + "-p"); });
      s.does("partitioned over plain", () -> admin.topics().createPartitionedTopic(s.topic + "-p", 2));
      s.does("named like a partition", () -> admin.topics().createPartitionedTopic(s.topic + "-partition-1", 2));
      s.gets("producer of partition", () -> client().newProducer().topic(s.topic + "-partition-1").create().getTopic());
    });
    checks.put("partitions/deleted", s -> {
      admin.topics().createPartitionedTopic(s.topic, 2);
      var p = unbatched(s.topic).create();
      s.does("with a producer", () -> admin.topics().deletePartitionedTopic(s.topic));
      p.close();
      s.does("after", () -> admin.topics().deletePartitionedTopic(s.topic));
      s.gets("metadata", () -> admin.topics().getPartitionedTopicMetadata(s.topic).partitions);
      s.does("again", () -> admin.topics().deletePartitionedTopic(s.topic));
    });
  }

  static class Watching implements ProducerInterceptor {
    final String name;
    final List<String> found;
    Watching(String name, List<String> found) { this.name = name; this.found = found; }
    @Override public void close() { found.add(name + " close"); }
    @Override public boolean eligible(Message message) { return true; }
    @Override public Message beforeSend(Producer producer, Message message) {
      found.add(name + " before " + text(message));
      if (text(message).equals("bad")) throw new IllegalStateException("no");
      ((org.apache.pulsar.client.impl.MessageImpl<?>) message).getMessageBuilder().addProperty().setKey(name).setValue("seen");
      return message;
    }
    @Override public void onSendAcknowledgement(Producer producer, Message message, MessageId id, Throwable error) {
      found.add(name + " after " + text(message) + " " + (id != null) + " " + (error == null ? "" : error.getClass().getSimpleName()));
    }
    @Override public void onPartitionsChange(String topic, int partitions) { found.add(name + " partitions " + partitions); }
  }

  static void interceptors() {
    checks.put("interceptor/producer", s -> {
      List<String> found = synced();
      var c = consumer(s.topic).subscribe();
      var p = unbatched(s.topic).intercept(new Watching("a", found), new Watching("b", found)).create();
      p.send("x".getBytes());
      p.send("bad".getBytes());
      p.close();
      s.is("found", found);
      s.is("properties", new TreeMap<>(next(c).getProperties()) + " " + new TreeMap<>(next(c).getProperties()));
    });
    checks.put("interceptor/producer-errors", s -> {
      List<String> found = synced();
      var p = unbatched(s.topic).maxPendingMessages(1).intercept(new Watching("a", found)).create();
      s.does("large", () -> p.send(new byte[6 << 20]));
      s.is("found", found.stream().map(each -> each.replace("\0", "").trim()).toList());
    });
    checks.put("interceptor/partitions", s -> {
      List<String> found = synced();
      admin.topics().createPartitionedTopic(s.topic, 1);
      unbatched(s.topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).intercept(new Watching("a", found)).create();
      admin.topics().updatePartitionedTopic(s.topic, 2);
      s.is("told", until(() -> found.contains("a partitions 2")));
    });
  }

  static void limits() {
    checks.put("limit/message-size", s -> {
      var p = unbatched(s.topic).create();
      s.does("5 MiB + 1", () -> p.send(new byte[(5 << 20) + 1]));
      s.does("below", () -> p.send(new byte[(5 << 20) - 1000]));
      s.does("random batched", () -> {
        byte[] large = new byte[6 << 20];
        new Random(1).nextBytes(large);
        client().newProducer().topic(s.topic).create().send(large);
      });
      s.does("next", () -> p.send("x".getBytes()));
    });
    checks.put("limit/topic-message-size", s -> {
      var p = unbatched(s.topic).create();
      admin.topicPolicies().setMaxMessageSize(s.topic, 100);
      s.is("set", until(() -> Objects.equals(admin.topicPolicies().getMaxMessageSize(s.topic), 100)));
      s.does("below", () -> p.send(new byte[50]));
      s.does("above", () -> p.send(new byte[150]));
      s.does("after", () -> p.send(new byte[50]));
      s.does("beyond the broker's", () -> admin.topicPolicies().setMaxMessageSize(s.topic, 6 << 20));
    });
    checks.put("limit/memory", s -> {
      try (var own = PulsarClient.builder().serviceUrl(url).memoryLimit(1000, SizeUnit.BYTES).build()) {
        var p = own.newProducer().topic(s.topic).batchingMaxPublishDelay(1, TimeUnit.MINUTES).create();
        var first = p.sendAsync(new byte[900]);
        s.gets("full", () -> p.sendAsync(new byte[900]).get());
        p.flush();
        s.is("first", at(first.get()));
        s.does("later", () -> p.send(new byte[900]));
      }
    });
    checks.put("limit/pending", s -> {
      var p = batched(s.topic).maxPendingMessages(2).create();
      var sent = List.of(p.sendAsync("a".getBytes()), p.sendAsync("b".getBytes()), p.sendAsync("c".getBytes()));
      s.gets("third", () -> sent.get(2).get());
      p.flush();
      s.is("first", at(sent.get(0).get()));
    });
    checks.put("stats/producer", s -> {
      try (var own = PulsarClient.builder().serviceUrl(url).statsInterval(1, TimeUnit.SECONDS).build()) {
        var p = own.newProducer().topic(s.topic).enableBatching(false).create();
        for (var each : numbered(0, 5)) p.send(each.getBytes());
        s.is("sent", until(() -> p.getStats().getTotalMsgsSent() == 5));
        s.is("acks", until(() -> p.getStats().getTotalAcksReceived() == 5));
        s.is("bytes", p.getStats().getTotalBytesSent() + " failed " + p.getStats().getTotalSendFailed());
      }
    });
    checks.put("stats/consumer", s -> {
      try (var own = PulsarClient.builder().serviceUrl(url).statsInterval(1, TimeUnit.SECONDS).build()) {
        var c = own.newConsumer().topic(s.topic).subscriptionName("s").subscribe();
        send(s.topic, 4);
        received(c, 4);
        s.is("received", until(() -> c.getStats().getTotalMsgsReceived() == 4));
        s.is("acks", until(() -> c.getStats().getTotalAcksSent() == 4));
        s.is("bytes", c.getStats().getTotalBytesReceived() + " failed " + c.getStats().getTotalReceivedFailed() + " " + c.getStats().getMsgNumInReceiverQueue());
      }
    });
  }
}
