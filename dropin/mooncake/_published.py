"""The names of the published package (0.3.13.post1) that ours does not define, by module.
`_absent` says what becomes of them.

    module
      own NAMES              made there
      import MODULES         `import module`, or `import module as name` written module>name
      from.where NAMES       `from from.where import name`, or `… as other` written name>other

A test compares it with the installed wheel.
"""

NAMES = """
mooncake.cli
  import os stat sys
mooncake.cli_bench
  own main
  import os stat sys subprocess
mooncake.cli_client
  import os stat sys
mooncake.dataproto_catalog
  own _normalize_handle _fragment _field_union _names _tags _nonempty_string
  import copy logging threading uuid
  collections.abc Callable Mapping Sequence
  typing Any
mooncake.ep
  own torch_version version_suffix backend_module backend_compat_module
  import importlib re torch
mooncake.fabric_allocator_utils
  own logger ProbeValue get_mooncake_so_path probe_allocator_backend
  import ctypes logging os
  importlib resources
  typing Any TypeVar
mooncake.http_metadata_server
  import asyncio signal
  aiohttp web
  time sleep
mooncake.mooncake_config
  import logging
  typing Optional
mooncake.mooncake_connector_v1
  own EngineId ReqId TRANS_DONE TRANS_ERROR VLLM_MOONCAKE_SIDE_CHANNEL_PORT VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
    VLLM_MOONCAKE_SENDER_WORKERS VLLM_MOONCAKE_PROTOCOL logger MooncakeAgentMetadata RecvReqMeta SendBlockMeta
    MooncakeConnectorMetadata MooncakeConnector MooncakeConnectorScheduler MooncakeConnectorWorker zmq_ctx
    group_concurrent_contiguous get_mooncake_side_channel_port _async_loop
  import contextlib asyncio threading time importlib msgspec numpy>np torch zmq
  collections defaultdict
  collections.abc Iterator
  concurrent.futures ThreadPoolExecutor
  dataclasses dataclass
  os getenv
  typing TYPE_CHECKING Any Optional
  vllm.attention.backends.abstract AttentionMetadata
  vllm.attention.selector get_attn_backend
  vllm.config VllmConfig
  vllm.distributed.kv_transfer.kv_connector.v1.base KVConnectorBase_V1 KVConnectorMetadata KVConnectorRole
    SupportsHMA
  vllm.distributed.parallel_state get_tensor_model_parallel_rank get_tp_group
  vllm.forward_context ForwardContext
  vllm.logger init_logger
  vllm.utils.network_utils get_ip make_zmq_path make_zmq_socket
  vllm.v1.attention.backends.utils get_kv_cache_layout
  vllm.v1.core.kv_cache_manager KVCacheBlocks
  vllm.v1.core.sched.output SchedulerOutput
  vllm.v1.request RequestStatus Request
mooncake.mooncake_elastic_buffer
  own _using_musa_backend _dist_barrier _ceil_div _align EPHandle ElasticBuffer
  import os warnings torch torch.distributed>dist
  mooncake.mooncake_ep_buffer EventOverlap _native_current_stream_ptr
  typing Any List Optional Tuple Union
mooncake.mooncake_ep_buffer
  own _env_enabled _USE_MACA _USE_SPLIT_SEND_RECV _ZERO_COPY_COMBINE_UNSUPPORTED _native_current_stream_ptr
    _wait_native_event_on_current_stream EventOverlap Buffer
  import os torch torch.distributed>dist
  typing Any Callable List Tuple Optional Union
mooncake.mooncake_ssd_register
  own MooncakeDistributedNoFRegister MooncakeNoFRegister parse_arguments main
  import argparse json logging re shlex paramiko
  typing List Dict Any
mooncake.mooncake_ssd_unregister
  own MooncakeDistributedNoFRegister MooncakeNoFUnregister parse_arguments main
  import argparse logging json shlex paramiko
  typing List Dict Any
mooncake.mooncake_store_service
  own _timed_handler _unblock_shutdown_signals _install_shutdown_signal_handlers
  import asyncio signal
  aiohttp web
mooncake.pg
  own torch_version version_suffix backend_module
  import importlib re torch
mooncake.reshard
  mooncake.reshard.contracts ResourceKind ResourceManifest PlacementManifest RuntimeBindingManifest
mooncake.reshard._compat
  own _T1 _T2 _T3 _T4 _strict_zip
  itertools zip_longest
  typing Iterable Iterator TypeVar cast overload
mooncake.reshard._typing
  import sys
  typing_extensions TypeAlias
mooncake.reshard.contracts
  mooncake.reshard.contracts.fragments RuntimeBindingFragment
  mooncake.reshard.contracts.ids LeaseId ParticipantId PlacementFragmentId PlacementId PlacementSetId ResourceId
    RevisionId RuntimeFragmentId RuntimeInstanceId StoredFragmentId TensorId TopologyId
  mooncake.reshard.contracts.manifest PlacementManifest ResourceKind ResourceManifest RuntimeBindingManifest
    StoredResourceManifest validate_resource_binding_identity
mooncake.reshard.contracts.fragments
  own _MAX_U64 RuntimeBindingFragment _require_integer _canonical_strides_bytes _normalize_singleton_strides_bytes
    _require_integer_tuple _require_u64 _require_address_range
  collections.abc Sequence
  dataclasses dataclass field
  mooncake.reshard.contracts.ids PlacementFragmentId RuntimeFragmentId
  typing Optional cast
mooncake.reshard.contracts.ids
  own ResourceId PlacementId ParticipantId PlacementFragmentId RuntimeFragmentId TensorId TopologyId PlacementSetId
    RevisionId RuntimeInstanceId LeaseId StoredFragmentId
  typing NewType
mooncake.reshard.contracts.manifest
  own ResourceKind ResourceManifest PlacementManifest RuntimeBindingManifest StoredResourceManifest
    validate_resource_binding_identity
  enum Enum
  mooncake.reshard.contracts.ids LeaseId PlacementId ResourceId RuntimeInstanceId
  typing Protocol
mooncake.reshard.geometry
  own _MAX_HIGH_DIMENSIONAL_PAIRWISE_COMPARISONS LogicalBox OverlapRegion box_contains boxes_overlap
    _one_dimensional_boxes_overlap _RangeMaxTree _two_dimensional_boxes_overlap _high_dimensional_boxes_overlap
    boxes_exactly_cover regions_exactly_cover
  import heapq
  array array
  math prod
  mooncake.reshard._compat _strict_zip
  typing Iterable Protocol Sequence
mooncake.reshard.weight
  mooncake.reshard.weight.manifest OwnershipAxis ParallelRank ParallelTopology PlacementFragment ReplicatedAxis
    RuntimeBindingFragment SplitAxis TensorDescriptor TopologyParticipant WeightPlacementManifest
    WeightPlacementPart WeightRuntimeBindingManifest validate_runtime_binding validate_runtime_bindings
  mooncake.reshard.weight.planner LogicalTransferPlan LogicalTransferOperation PipelineRouteGroup
    PlacementExecutorPlan PlanningLimits TransferRegion plan_placement_transfer
    plan_placement_transfer_to_local_target plan_stored_transfer_to_target_placement
  mooncake.reshard.weight.serde weight_placement_from_json weight_placement_to_json
  mooncake.reshard.weight.storage_manifest StoredFragment WeightManifest
mooncake.reshard.weight._planner
  mooncake.reshard.weight._planner.api plan_placement_transfer plan_placement_transfer_to_local_target
    plan_stored_transfer_to_target_placement
  mooncake.reshard.weight._planner.contracts LogicalTransferPlan LogicalTransferOperation PlanningLimits
    PipelineRouteGroup PlacementExecutorPlan TransferRegion
  mooncake.reshard.weight._planner.ownership complete_parallel_source_replicas parallel_tensor_owner
mooncake.reshard.weight._planner.api
  own plan_placement_transfer plan_placement_transfer_to_local_target plan_stored_transfer_to_target_placement
  mooncake.reshard.contracts ParticipantId
  mooncake.reshard.weight._planner.contracts LogicalTransferPlan PlanningLimits
  mooncake.reshard.weight._planner.core _collect_placements _logical_transfer_plan _plan_transfer
  mooncake.reshard.weight.manifest WeightPlacementManifest
  mooncake.reshard.weight.storage_manifest WeightManifest
  typing Optional
mooncake.reshard.weight._planner.contracts
  own RuntimeTensorOwner _SourceFragmentT _TargetFragmentT PipelineRouteGroup PlanningLimits TransferRegion
    LogicalTransferRegion LogicalTransferOperation _is_canonical_operation _validate_logical_operation
    PlacementExecutorPlan PlacementExecutorProjectionKey ExecutorProjectionKey FragmentProjectionKey _OperationViews
    LogicalTransferPlan _canonical_tensor_catalog _executor_projection_key _fragment_projection_key
    _index_executors_by_fragment _build_operation_views _pipeline_routes
  dataclasses dataclass field
  math prod
  mooncake.reshard._compat _strict_zip
  mooncake.reshard._typing TypeAlias
  mooncake.reshard.contracts ParticipantId PlacementFragmentId PlacementId ResourceId RevisionId TensorId
  mooncake.reshard.geometry box_contains>_box_contains
  mooncake.reshard.weight._planner.fragments GeometryFragment LogicalSourceFragment LogicalTargetFragment
  mooncake.reshard.weight._planner.geometry _derive_region_geometry _fragment_itemsize _validate_outer_strides
  mooncake.reshard.weight.manifest ParallelRank PlacementFragment TensorDescriptor WeightPlacementManifest
  mooncake.reshard.weight.storage_manifest StoredFragment StoredManifestIdentity WeightManifest
    validate_weight_manifest_snapshot
  types MappingProxyType
  typing ClassVar Generic Iterable Mapping Optional Sequence TypeVar cast
mooncake.reshard.weight._planner.core
  own _PlannedTransfer _collect_placements _build_placement_executor_plans _plan_transfer _logical_transfer_plan
  dataclasses dataclass
  mooncake.reshard.contracts ParticipantId PlacementFragmentId PlacementId ResourceId RevisionId TensorId
  mooncake.reshard.geometry boxes_exactly_cover
  mooncake.reshard.weight._planner geometry
  mooncake.reshard.weight._planner.contracts LogicalTransferPlan LogicalTransferOperation PlacementExecutorPlan
    PlanningLimits TransferRegion
  mooncake.reshard.weight._planner.fragments LogicalSourceFragment LogicalTargetFragment
  mooncake.reshard.weight._planner.ownership _validate_local_target_inventory _validate_target_coverage
    complete_dp_owned_source_owners complete_parallel_source_replicas has_dp_ownership parallel_tensor_owner
  mooncake.reshard.weight._planner.validation _validate_tensor_compatibility _validate_tensor_sets
    _validate_tensor_subset
  mooncake.reshard.weight.placement WeightPlacementManifest
  mooncake.reshard.weight.storage_manifest StoredFragment WeightManifest
  mooncake.reshard.weight.types ParallelRank PlacementFragment TensorDescriptor
  typing Optional Sequence
mooncake.reshard.weight._planner.fragments
  own LogicalSourceFragment LogicalTargetFragment GeometryFragment
  mooncake.reshard._typing TypeAlias
  mooncake.reshard.weight.manifest PlacementFragment
  mooncake.reshard.weight.storage_manifest StoredFragment
  typing Union
mooncake.reshard.weight._planner.geometry
  own _fragment_itemsize _logical_byte_offset _validate_outer_strides GeometryKey SourceSortKey _geometry_key
    _source_sort_key _CandidateInterval _CandidateIntervalNode _CandidateBoxIndex _overlap_box
    _canonical_byte_strides _derive_region_geometry _transfer_region
  dataclasses dataclass
  math prod
  mooncake.reshard._compat _strict_zip
  mooncake.reshard._typing TypeAlias
  mooncake.reshard.contracts TensorId
  mooncake.reshard.weight._planner.contracts TransferRegion
  mooncake.reshard.weight._planner.fragments GeometryFragment LogicalSourceFragment LogicalTargetFragment
  mooncake.reshard.weight.storage_manifest StoredFragment
  mooncake.reshard.weight.types TensorDescriptor
  typing TYPE_CHECKING Optional Sequence Union
mooncake.reshard.weight._planner.ownership
  own _fragments_fully_cover_tensor parallel_tensor_owner has_dp_ownership complete_dp_owned_source_owners
    _validate_target_coverage complete_parallel_source_replicas _validate_local_target_inventory
  mooncake.reshard.contracts TensorId
  mooncake.reshard.geometry boxes_exactly_cover
  mooncake.reshard.weight._planner.contracts RuntimeTensorOwner
  mooncake.reshard.weight._planner.fragments LogicalSourceFragment LogicalTargetFragment
  mooncake.reshard.weight.manifest OwnershipAxis PlacementFragment TensorDescriptor
  typing Sequence
mooncake.reshard.weight._planner.validation
  own _validate_logical_target_coverage _validate_logical_source_placement _validate_tensor_compatibility
    _validate_tensor_sets _validate_tensor_subset
  mooncake.reshard.contracts ParticipantId PlacementFragmentId TensorId
  mooncake.reshard.geometry regions_exactly_cover
  mooncake.reshard.weight._planner.contracts LogicalTransferOperation LogicalTransferPlan
  mooncake.reshard.weight.manifest PlacementFragment TensorDescriptor
mooncake.reshard.weight.binding
  own validate_runtime_binding _validate_runtime_binding_subset validate_runtime_bindings
  mooncake.reshard.contracts RuntimeInstanceId validate_resource_binding_identity
  mooncake.reshard.weight.placement WeightPlacementManifest
  mooncake.reshard.weight.runtime WeightRuntimeBindingManifest
  mooncake.reshard.weight.types canonical_strides_bytes require_manifest_items
  mooncake.reshard.weight.validation _validate_runtime_binding_address_ranges
mooncake.reshard.weight.manifest
  mooncake.reshard.weight.binding validate_runtime_binding validate_runtime_bindings
  mooncake.reshard.weight.part WeightPlacementPart
  mooncake.reshard.weight.placement WeightPlacementManifest
  mooncake.reshard.weight.runtime WeightRuntimeBindingManifest
  mooncake.reshard.weight.topology ParallelTopology TopologyParticipant
  mooncake.reshard.weight.types OwnershipAxis ParallelRank PlacementFragment ReplicatedAxis RuntimeBindingFragment
    SplitAxis TensorDescriptor
mooncake.reshard.weight.part
  own WeightPlacementPart
  dataclasses dataclass
  mooncake.reshard.contracts ParticipantId PlacementSetId ResourceId RevisionId TopologyId
  mooncake.reshard.weight.types ParallelRank PlacementFragment TensorDescriptor _require_nonempty_string
    _require_u64 require_manifest_items
  mooncake.reshard.weight.validation _validate_fragments
mooncake.reshard.weight.placement
  own WeightPlacementManifest _validate_parts _canonical_json_digest _logical_placement_id _parallel_axis_identity
    _placement_fragment_identity
  import hashlib json
  collections.abc Sequence
  dataclasses asdict dataclass field
  mooncake.reshard.contracts ParticipantId PlacementId PlacementSetId ResourceId ResourceKind RevisionId TensorId
  mooncake.reshard.weight.part WeightPlacementPart
  mooncake.reshard.weight.topology ParallelTopology
  mooncake.reshard.weight.types OwnershipAxis PlacementFragment ReplicatedAxis SplitAxis TensorDescriptor
    _require_nonempty_string _require_u64 require_manifest_items
  mooncake.reshard.weight.validation _validate_complete_weight_placement _validate_fragments
  typing Optional
mooncake.reshard.weight.planner
  mooncake.reshard.weight._planner.api plan_placement_transfer plan_placement_transfer_to_local_target
    plan_stored_transfer_to_target_placement
  mooncake.reshard.weight._planner.contracts LogicalTransferPlan LogicalTransferOperation PlanningLimits
    PipelineRouteGroup PlacementExecutorPlan TransferRegion
mooncake.reshard.weight.runtime
  own WeightRuntimeBindingManifest
  dataclasses dataclass
  mooncake.reshard.contracts LeaseId ParticipantId PlacementId ResourceId ResourceKind RevisionId
    RuntimeBindingFragment RuntimeInstanceId
  mooncake.reshard.weight.types _require_nonempty_string _require_u64 require_manifest_items require_sha256_digest
mooncake.reshard.weight.serde
  own JsonScalar JsonValue JsonObject weight_placement_to_json weight_placement_from_json _part_to_wire
    _topology_to_wire _topology_from_wire _tensor_to_wire _tensor_from_wire _axis_to_wire _axis_from_wire
    _fragment_to_wire _fragment_from_wire _rank_to_wire _rank_from_wire _load_json_object _require_mapping
    _require_exact_fields _require_sequence _require_nonempty_string _require_integer _optional_integer
    _integer_tuple _parallel_axis_kind _split_axis_kind
  import json
  collections.abc Mapping Sequence Set>AbstractSet
  mooncake.reshard._typing TypeAlias
  mooncake.reshard.contracts ParticipantId PlacementFragmentId PlacementId PlacementSetId ResourceId ResourceKind
    RevisionId TensorId TopologyId
  mooncake.reshard.weight.part WeightPlacementPart
  mooncake.reshard.weight.placement WeightPlacementManifest
  mooncake.reshard.weight.topology ParallelTopology TopologyParticipant
  mooncake.reshard.weight.types OwnershipAxis ParallelAxis ParallelAxisKind ParallelRank PlacementFragment
    ReplicatedAxis SplitAxis SplitAxisKind TensorDescriptor
  typing Optional Union cast
mooncake.reshard.weight.storage_manifest
  own StoredGeometryKey StoredAliasDescriptorKey StoredAliasGeometryKey StoredManifestIdentity StoredFragment
    WeightManifest validate_weight_manifest_snapshot _require_exact_fields _require_mapping _optional_integer
    _stored_fragment_from_wire _validate_stored_fragments _validate_stored_coverage _stored_alias_descriptor_key
    _validate_stored_aliases _validate_stored_object_ranges _has_overlapping_boxes
  import hashlib json
  collections.abc Mapping Sequence
  dataclasses asdict dataclass field
  math prod
  mooncake.reshard._compat _strict_zip
  mooncake.reshard._typing TypeAlias
  mooncake.reshard.contracts ResourceId ResourceKind RevisionId StoredFragmentId TensorId
  mooncake.reshard.weight.serde _axis_from_wire _axis_to_wire
  mooncake.reshard.weight.types TensorDescriptor ParallelAxis _normalize_aliases _require_integer
    _require_integer_tuple _require_manifest_items _require_nonempty_string _require_sequence _require_u64
    validate_fragment_geometry
  typing Optional Union cast
mooncake.reshard.weight.topology
  own TopologyParticipant ParallelTopology _topology_id
  import hashlib json
  dataclasses asdict dataclass
  mooncake.reshard.contracts ParticipantId TopologyId
  mooncake.reshard.weight.types ParallelRank _require_integer _require_nonempty_string require_manifest_items
  typing Optional
mooncake.reshard.weight.types
  own RuntimeBindingFragment _MAX_U64 ParallelAxisKind SplitAxisKind _PARALLEL_AXIS_ORDER _T ParallelRank SplitAxis
    ReplicatedAxis OwnershipAxis ParallelAxis TensorDescriptor validate_fragment_geometry canonical_strides_bytes
    PlacementFragment _require_nonempty_string _require_integer _require_u64 require_sha256_digest
    _require_integer_tuple _require_sequence require_manifest_items _normalize_aliases
    _canonical_placement_fragment_id _validate_parallel_axis_kind _canonical_strides_bytes _require_manifest_items
    _require_sha256_digest
  import hashlib json
  collections.abc Sequence
  dataclasses asdict dataclass
  math prod
  mooncake.reshard.contracts PlacementFragmentId TensorId RuntimeBindingFragment>_RuntimeBindingFragment
  typing Literal Optional TypeVar Union cast
mooncake.reshard.weight.validation
  own _validate_fragments _validate_complete_alias_groups _validate_complete_weight_placement _split_axis_kinds
    _replicated_axis_kinds _ownership_axis_kinds _axis_rank _rank_matches _validate_tensor_axis_covers
    _validate_undeclared_axis_dependencies _validate_split_axis_geometry _merge_intervals _parallel_split_rank
    _validate_split_axis_participation _fragments_exactly_cover_tensor _validate_logical_fragment_overlaps
    _validate_fragment_geometry _runtime_alias_descriptor_key _is_exact_declared_runtime_alias
    _validate_runtime_binding_address_ranges
  collections.abc Mapping Sequence
  itertools product>cartesian_product
  mooncake.reshard.contracts RuntimeBindingFragment RuntimeInstanceId TensorId
  mooncake.reshard.geometry boxes_exactly_cover boxes_overlap
  mooncake.reshard.weight.topology ParallelTopology
  mooncake.reshard.weight.types OwnershipAxis ParallelRank PlacementFragment ReplicatedAxis SplitAxis
    TensorDescriptor validate_fragment_geometry
mooncake.shared_segment
  own _CppSharedSegment _ALIGN SharedSegmentError create_shared_segment SharedSegment shared_segment_supported
    _BlockSpec
    _block_layout_tag _align_up _parse_block _build_layout _current_device_index _select_comm_group
    _resolve_cpu_group _raise_if_any_rank_failed _all_gather_blob _contiguous_strides _tensor_from_device_ptr
    _tensor_from_host_addr
  import ctypes torch torch.distributed>dist
  collections.abc Mapping Sequence
  dataclasses dataclass
  typing Any
mooncake.spdk_tgt_create
  own SPDKTgtCreator parse_arguments main
  import argparse logging paramiko re shlex time
  typing List Dict Any Optional
mooncake.structured_object_store
  own _concat_arrays_into _TYPED_RAGGED_DEFAULT_DTYPE _RAGGED_TENSOR_DEFAULT_DTYPE _ENCODING_FALLBACK_ERRORS
    _TensorPayload _TensorObjectBufferPayload _MultiBufferPayload _DirectCopyPayload _RawDestinationBuffer
    _PoolLeaseOwner _PoolBackedNdarray _NdarrayReadPlan _DataProtoRowSelection _resolve_dataproto_ref
    _require_mapping _import_global_indexes _json_safe_value _copy_transfer_policy _dataproto_manifest_view
    _flat_dict_to_envelope _flat_dict_schema_row_count _field_len _flat_dict_auto_row_count
    _coerce_flat_dict_non_tensor_field _is_non_string_sequence _is_row_aligned_dense_field _envelope_to_flat_dict
    _build_dataproto_like_result _split_dataproto_like _is_dataproto_envelope_mapping _is_mapping_like_or_none
    _mapping_to_dict _dataproto_batch_size _resolve_dataproto_field_selection _validate_dataproto_fields_exist
    _coerce_dataproto_row_selection _normalize_dataproto_row_index _slice_length _select_mapping
    _DATAPROTO_SCHEMA_SECTIONS _RAGGED_TENSOR_PAYLOAD_NAMES _schema_section _schema_for_section
    _schema_ndarray_dtype _validate_dataproto_schema_sections _coerce_schema_non_tensor_value
    _validate_schema_nullable _should_encode_non_tensor_field _encode_structured_non_tensor_field
    _encode_with_schema _should_encode_recursive_structure _should_encode_recursive_leaf _recursive_leaf_decision
    _encode_recursive_structured_non_tensor_field _is_recursive_encoded_non_tensor _structured_path_tokens
    _lookup_structured_path _encode_structured_leaf _decode_structured_non_tensor_encoded
    _copy_recursive_metadata_for_leaf_updates _decode_structured_recursive_field _child_path _path_depth
    _reconstruct_structured_rows _decode_structured_leaf _encode_ragged_tensor_values _decode_ragged_tensor_values
    _normalize_ragged_tensor_dict_keys _ragged_tensor_dict_payload_items _encode_ragged_tensor_dict_values
    _decode_ragged_tensor_dict_values _encode_typed_ragged_values _decode_typed_ragged_values
    _encode_numeric_scalar_values _decode_numeric_scalar_values _value_to_media_bytes _encode_bytes_like_values
    _multi_buffer_bytes_payload _decode_media_bytes _decode_bytes_like_values _encode_media_list_values
    _decode_media_list_values _StructuredObjectLayer _BundleManifestStore _MooncakePayloadTransport
    _resolve_ndarray_destination _resolve_ndarray_read_plan _normalized_member_slice _select_nested_tensor_rows
    _bytes_view _prepare_chunk_source_buffer _buffer_ptr _buffer_nbytes _split_view _split_multi_buffer_payload
    _buffer_group_nbytes _copy_memoryviews _copy_memoryviews_to_lease _chunk_offsets _payload_range_fragments
    _validate_chunk_bytes _normalize_key_prefix _validate_key_segment _encode_manifest _decode_manifest
    _normalize_structured_metadata _encode_structured_fields _encode_structured_field _encode_torch_tensor_field
    _tensor_payload_parts _encode_recursive_if_structured _encode_with_fallback _normalize_values_for_fallback_codec
    _normalize_structured_scalar _encode_typed_ragged_regular_ndarray_rows _encode_typed_ragged_ndarray_rows
    _as_contiguous_array_preserve_ndim _decode_typed_ragged_ndarray_rows_fast _regular_offsets_width
    _encode_msgpack_ragged_values _decode_msgpack_ragged_values _OwnerBackedList _OwnerBackedObjectArray
    _object_array_from_decoded_values _has_tensor_codec_helpers _tensor_metadata_size _torch_save_payload_bytes
    _deserialize_torch_save_payload _encode_nested_tensor_field _deserialize_nested_tensor_payload
    _nested_tensor_from_parts _slice_tensor_metadata _tensor_payload_bytes _deserialize_tensor_payload
    _tensor_codec_helper _structured_field_specs _merge_structured_stage_metadata _encode_structured_metadata
    _decode_structured_metadata _encode_json_dict _decode_json_dict _call_write_with_optional_config
    _WRITE_CONFIG_COPY_FIELDS _config_for_grouped_keys _copy_write_config _config_with_group_id
    _put_with_optional_config _put_from_with_optional_config _batch_put_from_with_optional_config _check_status
    _is_duplicate_buffer_registration _cleanup_keys _INFER_MAX_SAMPLE_ROWS _INFER_MAX_JSON_BYTES _parse_torch_dtype
    _torch_dtype_to_numpy _EncodedStructuredLeaf _is_media_list _can_media_list _check_all _can_tensor
    _can_numeric_sequence _can_numeric_scalar _can_msgpack _can_json _try_expand_dict _try_expand_list
  import copy ctypes io json uuid numpy>np mooncake.store>_mooncake_store msgpack>_msgpack torch>_torch
  concurrent.futures Future ThreadPoolExecutor as_completed
  contextlib contextmanager
  dataclasses dataclass field
  types SimpleNamespace
  typing Callable Iterator Literal Optional
mooncake.transfer_engine_topology_dump
  own parse_args resolve_backend apply_backend _load_tent_conf_object sanitize_tent_conf_for_discover
    dump_te_topology dump_tent_topology main
  import argparse json os sys tempfile
mooncake.vllm_v1_proxy_server
  own logger lifespan app parse_args get_next_client send_request_to_service stream_service_response
    _handle_completions handle_completions handle_chat_completions healthcheck
  import argparse itertools logging os uuid httpx
  contextlib asynccontextmanager
  fastapi FastAPI Request
  fastapi.responses StreamingResponse
"""
