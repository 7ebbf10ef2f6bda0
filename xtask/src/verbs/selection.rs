//! What `crates/fabric` uses of libibverbs. All else of its headers is left out.

/// Structures and unions whose fields are used, or that are made by value.
pub(super) const TYPES: &[&str] = &[
    "ibv_async_event",
    "ibv_comp_channel",
    "ibv_context",
    "ibv_cq",
    "ibv_device_attr",
    "ibv_gid_entry",
    "ibv_mr",
    "ibv_port_attr",
    "ibv_qp",
    "ibv_qp_attr",
    "ibv_qp_init_attr",
    "ibv_recv_wr",
    "ibv_send_wr",
    "ibv_wc",
];

/// Enumerations of which constants are used, though no field has them as its type.
pub(super) const ENUMERATIONS: &[&str] = &[
    "ib_uverbs_access_flags",
    "ibv_access_flags",
    "ibv_gid_type",
    "ibv_qp_attr_mask",
    "ibv_send_flags",
    "ibv_wc_flags",
    "verbs_context_before",
    "verbs_link_layer",
];

/// Structures that are known by their address alone.
pub(super) const OPAQUE: &[&str] = &[
    "_compat_ibv_port_attr",
    "ibv_ah",
    "ibv_device",
    "ibv_mw",
    "ibv_mw_bind",
    "ibv_pd",
    "ibv_srq",
    "ibv_wq",
];

/// What only those are made of, and what the crate libc declares.
pub(super) const HIDDEN: &[&str] = &[
    "(__)?pthread_.*",
    "__atomic_wide_counter.*",
    "_ibv_device_ops",
    "ibv_(node|transport|wq)_.*",
];

/// Constants of enumerations.
pub(super) const CONSTANTS: &[&str] = &[
    "IBV_ACCESS_LOCAL_WRITE",
    "IBV_ACCESS_RELAXED_ORDERING",
    "IBV_ACCESS_REMOTE_READ",
    "IBV_ACCESS_REMOTE_WRITE",
    "IBV_EVENT_DEVICE_FATAL",
    "IBV_EVENT_PORT_ACTIVE",
    "IBV_EVENT_PORT_ERR",
    "IBV_GID_TYPE_IB",
    "IBV_GID_TYPE_ROCE_V1",
    "IBV_MTU_1024",
    "IBV_MTU_2048",
    "IBV_MTU_256",
    "IBV_MTU_4096",
    "IBV_MTU_512",
    "IBV_PORT_ACTIVE",
    "IBV_PORT_ARMED",
    "IBV_PORT_INIT",
    "IBV_QPS_ERR",
    "IBV_QPS_INIT",
    "IBV_QPS_RTR",
    "IBV_QPS_RTS",
    "IBV_QPT_RC",
    "IBV_QP_ACCESS_FLAGS",
    "IBV_QP_AV",
    "IBV_QP_DEST_QPN",
    "IBV_QP_MAX_DEST_RD_ATOMIC",
    "IBV_QP_MAX_QP_RD_ATOMIC",
    "IBV_QP_MIN_RNR_TIMER",
    "IBV_QP_PATH_MTU",
    "IBV_QP_PKEY_INDEX",
    "IBV_QP_PORT",
    "IBV_QP_RETRY_CNT",
    "IBV_QP_RNR_RETRY",
    "IBV_QP_RQ_PSN",
    "IBV_QP_SQ_PSN",
    "IBV_QP_STATE",
    "IBV_QP_TIMEOUT",
    "IBV_SEND_FENCE",
    "IBV_SEND_INLINE",
    "IBV_SEND_SIGNALED",
    "IBV_WC_LOC_LEN_ERR",
    "IBV_WC_LOC_PROT_ERR",
    "IBV_WC_LOC_QP_OP_ERR",
    "IBV_WC_REM_ACCESS_ERR",
    "IBV_WC_REM_INV_REQ_ERR",
    "IBV_WC_RESP_TIMEOUT_ERR",
    "IBV_WC_RETRY_EXC_ERR",
    "IBV_WC_RNR_RETRY_EXC_ERR",
    "IBV_WC_SUCCESS",
    "IBV_WC_WITH_IMM",
    "IBV_WC_WR_FLUSH_ERR",
    "IBV_WR_RDMA_READ",
    "IBV_WR_RDMA_WRITE",
    "IBV_WR_RDMA_WRITE_WITH_IMM",
    "IBV_WR_SEND",
    "IB_UVERBS_ACCESS_OPTIONAL_RANGE",
    "VERBS_CONTEXT_QUERY_PORT_BEFORE",
    "VERBS_CONTEXT_SZ_BEFORE",
    "VERBS_LINK_LAYER_ETHERNET",
];

/// Functions that every libibverbs.so.1 has.
pub(super) const FUNCTIONS: &[&str] = &[
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_modify_qp",
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_reg_mr",
    "ibv_wc_status_str",
];

/// Functions that came with later versions of it: 1.8, 1.11, 1.12 and 1.14.
pub(super) const FUNCTIONS_LATER: &[&str] = &[
    "ibv_reg_mr_iova2",
    "_ibv_query_gid_table",
    "ibv_reg_dmabuf_mr",
    "ibv_query_qp_data_in_order",
];

/// Names that bindgen makes up where C has none, and ours for them. Longer ones come first.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("ibv_send_wr__bindgen_ty_2__bindgen_ty_1", "ibv_send_wr_rdma"),
    ("ibv_send_wr__bindgen_ty_2__bindgen_ty_2", "ibv_send_wr_atomic"),
    ("ibv_send_wr__bindgen_ty_2__bindgen_ty_3", "ibv_send_wr_ud"),
    ("ibv_send_wr__bindgen_ty_3__bindgen_ty_1", "ibv_send_wr_xrc"),
    ("ibv_send_wr__bindgen_ty_4__bindgen_ty_1", "ibv_send_wr_bind_mw"),
    ("ibv_send_wr__bindgen_ty_4__bindgen_ty_2", "ibv_send_wr_tso"),
    ("__bindgen_anon_1: ibv_send_wr__bindgen_ty_1", "data: ibv_send_wr_data"),
    ("__bindgen_anon_2: ibv_send_wr__bindgen_ty_4", "extra: ibv_send_wr_extra"),
    ("ibv_send_wr__bindgen_ty_1", "ibv_send_wr_data"),
    ("ibv_send_wr__bindgen_ty_2", "ibv_send_wr_wr"),
    ("ibv_send_wr__bindgen_ty_3", "ibv_send_wr_qp_type"),
    ("ibv_send_wr__bindgen_ty_4", "ibv_send_wr_extra"),
    ("__bindgen_anon_1: ibv_wc__bindgen_ty_1", "data: ibv_wc_data"),
    ("ibv_wc__bindgen_ty_1", "ibv_wc_data"),
    ("ibv_gid__bindgen_ty_1", "ibv_gid_global"),
    ("ibv_async_event__bindgen_ty_1", "ibv_async_event_element"),
];
