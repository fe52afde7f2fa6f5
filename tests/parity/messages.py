"""Tables of the commands and fields of Pulsar's binary protocol that occur in the scenarios.

A field is `number name type`, and `*` means repeated. Types are `u32`, `u64`, `i32`, `i64`, `bool`, `str`, `bytes`, or the name
of an enum or of a message below.
"""

ENUMS = {
    name: values.split()
    for name, values in {
        "AccessMode": "Shared Exclusive WaitForExclusive ExclusiveWithFencing",
        "AckType": "Individual Cumulative",
        "Error": "UnknownError MetadataError PersistenceError AuthenticationError AuthorizationError ConsumerBusy "
        "ServiceNotReady ProducerBlockedQuotaExceededError ProducerBlockedQuotaExceededException ChecksumError "
        "UnsupportedVersionError TopicNotFound SubscriptionNotFound ConsumerNotFound TooManyRequests "
        "TopicTerminatedError ProducerBusy InvalidTopicName IncompatibleSchema ConsumerAssignError "
        "TransactionCoordinatorNotFound InvalidTxnStatus NotAllowedError TransactionConflict TransactionNotFound "
        "ProducerFenced",
        "InitialPosition": "Latest Earliest",
        "KeySharedMode": "AUTO_SPLIT STICKY",
        "LookupType": "Redirect Connect Failed",
        "SubType": "Exclusive Shared Failover Key_Shared",
    }.items()
}
"""The names of each enum, numbered from 0."""

COMMANDS = {
    "CONNECT": (2, "1 client_version str, 4 protocol_version i32, 5 auth_method_name str, 10 feature_flags Features"),
    "CONNECTED": (3, "1 server_version str, 2 protocol_version i32, 3 max_message_size i32, 4 feature_flags Features"),
    "SUBSCRIBE": (4, ("1 topic str, 2 subscription str, 3 subType SubType, 4 consumer_id u64, 5 request_id u64, "
                     "6 consumer_name str, 7 priority_level i32, 8 durable bool, 9 start_message_id MessageId, "
                     "11 read_compacted bool, 13 initialPosition InitialPosition, "
                     "14 replicate_subscription_state bool, 15 force_topic_creation bool, "
                     "16 start_message_rollback_duration_sec u64, 17 keySharedMeta KeyShared, 19 consumer_epoch u64")),
    "PRODUCER": (5, ("1 topic str, 2 producer_id u64, 3 request_id u64, 4 producer_name str, "
                    "5 encrypted bool, 8 epoch u64, 9 user_provided_producer_name bool, "
                    "10 producer_access_mode AccessMode, 11 topic_epoch u64, 12 txn_enabled bool")),
    "SEND": (6, ("1 producer_id u64, 2 sequence_id u64, 3 num_messages i32, 6 highest_sequence_id u64, "
                "7 is_chunk bool")),
    "SEND_RECEIPT": (7, "1 producer_id u64, 2 sequence_id u64, 3 message_id MessageId, 4 highest_sequence_id u64"),
    "SEND_ERROR": (8, "1 producer_id u64, 2 sequence_id u64, 3 error Error, 4 message str"),
    "MESSAGE": (9, ("1 consumer_id u64, 2 message_id MessageId, 3 redelivery_count u32, 4 ack_set i64*, "
                   "5 consumer_epoch u64")),
    "ACK": (10, "1 consumer_id u64, 2 ack_type AckType, 3 message_id MessageId*, 8 request_id u64"),
    "FLOW": (11, "1 consumer_id u64, 2 messagePermits u32"),
    "UNSUBSCRIBE": (12, "1 consumer_id u64, 2 request_id u64, 3 force bool"),
    "SUCCESS": (13, "1 request_id u64"),
    "ERROR": (14, "1 request_id u64, 2 error Error, 3 message str"),
    "CLOSE_PRODUCER": (15, "1 producer_id u64, 2 request_id u64, 3 assignedBrokerServiceUrl str"),
    "CLOSE_CONSUMER": (16, "1 consumer_id u64, 2 request_id u64, 3 assignedBrokerServiceUrl str"),
    "PRODUCER_SUCCESS": (17, ("1 request_id u64, 2 producer_name str, 3 last_sequence_id i64, 4 schema_version bytes, "
                             "5 topic_epoch u64, 6 producer_ready bool")),
    "PING": (18, ""),
    "PONG": (19, ""),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": (20, "1 consumer_id u64, 2 message_ids MessageId*, 3 consumer_epoch u64"),
    "LOOKUP": (23, "1 topic str, 2 request_id u64, 3 authoritative bool"),
    "LOOKUP_RESPONSE": (24, ("1 brokerServiceUrl str, 3 response LookupType, 4 request_id u64, 5 authoritative bool, "
                            "6 error Error, 7 message str, 8 proxy_through_service_url bool")),
    "REACHED_END_OF_TOPIC": (27, "1 consumer_id u64"),
    "SEEK": (28, "1 consumer_id u64, 2 request_id u64, 3 message_id MessageId, 4 message_publish_time u64"),
    "GET_LAST_MESSAGE_ID": (29, "1 consumer_id u64, 2 request_id u64"),
    "GET_LAST_MESSAGE_ID_RESPONSE": (30, ("1 last_message_id MessageId, 2 request_id u64, "
                                         "3 consumer_mark_delete_position MessageId")),
    "ACTIVE_CONSUMER_CHANGE": (31, "1 consumer_id u64, 2 is_active bool"),
    "ACK_RESPONSE": (38, "1 consumer_id u64, 4 error Error, 5 message str, 6 request_id u64"),
}  # fmt: skip
"""Each command's number, which is both its type and its field in the base command, and its fields."""

PARTS = {
    "Features": "1 supports_auth_refresh bool, 2 supports_broker_entry_metadata bool, 3 supports_partial_producer bool, "
    "4 supports_topic_watchers bool, 5 supports_get_partitioned_metadata_without_auto_creation bool, "
    "6 supports_repl_dedup_by_lid_and_eid bool, 7 supports_topic_watcher_reconcile bool",
    "KeyShared": "1 keySharedMode KeySharedMode, 3 hashRanges Range*, 4 allowOutOfOrderDelivery bool",
    "Range": "1 start i32, 2 end i32",
    "MessageId": "1 ledgerId u64, 2 entryId u64, 3 partition i32, 4 batch_index i32, 5 ack_set i64*, 6 batch_size i32",
    "Metadata": "1 producer_name str, 2 sequence_id u64, 3 publish_time u64, 6 partition_key str, "
    "9 uncompressed_size u32, 11 num_messages_in_batch i32, 12 event_time u64, 17 partition_key_b64_encoded bool, "
    "19 deliver_at_time i64, 24 highest_sequence_id u64, 26 uuid str, 27 num_chunks_from_msg i32, "
    "28 total_chunk_msg_size i32, 29 chunk_id i32",
    "SingleMetadata": "2 partition_key str, 3 payload_size i32, 8 sequence_id u64",
}
