//! The declarations against the C headers that they were made from: every size, offset, constant and prototype
//! becomes an assertion that the C compiler checks. Where there are no headers it says that it is skipped.

use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use tensorwire_testkit::skip::skip;

use super::*;

/// A structure: ours, C's type, our size, whether a later version of C's may be larger, and the fields by their
/// names in C with their offsets in ours.
struct Layout {
    name: &'static str,
    c: &'static str,
    bytes: usize,
    grows: bool,
    fields: Vec<(&'static str, usize)>,
}

/// Structures by name, C's type and their fields; a field `ours = "c"` has another name there. That all fields
/// are listed is what the pattern is for.
macro_rules! layouts {
    ($($(#[$grows:ident])? $name:ident: $c:literal { $($field:ident $(= $c_field:literal)?),* $(,)? })*) => {
        fn layouts() -> Vec<Layout> {
            $(let _ = |value: $name| { let $name { $($field: _),* } = value; };)*
            vec![$(Layout {
                name: stringify!($name),
                c: $c,
                bytes: size_of::<$name>(),
                grows: [$(stringify!($grows))?].contains(&"grows"),
                fields: vec![$((c_name(&[stringify!($field) $(, $c_field)?]), offset_of!($name, $field))),*],
            }),*]
        }
    };
}

/// The last: C's own name where there is one.
const fn c_name(names: &[&'static str]) -> &'static str {
    names[names.len() - 1]
}

layouts! {
    ibv_gid_global: "__typeof__(((union ibv_gid *)0)->global)" { subnet_prefix, interface_id }
    #[grows] ibv_gid_entry: "struct ibv_gid_entry" { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_device_attr: "struct ibv_device_attr" {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
        max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
        max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
        max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt,
    }
    #[grows] ibv_port_attr: "struct ibv_port_attr" {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
        pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
        active_speed, phys_state, link_layer, flags, port_cap_flags2,
    }
    ibv_async_event: "struct ibv_async_event" { element, event_type }
    ibv_wc: "struct ibv_wc" {
        wr_id, status, opcode, vendor_err, byte_len, data = "imm_data", qp_num, src_qp, wc_flags, pkey_index, slid,
        sl, dlid_path_bits,
    }
    ibv_mw_bind_info: "struct ibv_mw_bind_info" { mr, addr, length, mw_access_flags }
    ibv_mr: "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey }
    ibv_global_route: "struct ibv_global_route" { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_ah_attr: "struct ibv_ah_attr" { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ibv_qp_cap: "struct ibv_qp_cap" {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
    }
    ibv_qp_init_attr: "struct ibv_qp_init_attr" {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
    }
    ibv_qp_attr: "struct ibv_qp_attr" {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
        ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
        max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
        rate_limit,
    }
    ibv_sge: "struct ibv_sge" { addr, length, lkey }
    ibv_send_wr: "struct ibv_send_wr" {
        wr_id, next, sg_list, num_sge, opcode, send_flags, data = "imm_data", wr, qp_type, extra = "bind_mw",
    }
    ibv_send_wr_rdma: "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" { remote_addr, rkey }
    ibv_send_wr_atomic: "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr, compare_add, swap, rkey,
    }
    ibv_send_wr_ud: "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" { ah, remote_qpn, remote_qkey }
    ibv_send_wr_xrc: "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" { remote_srqn }
    ibv_send_wr_bind_mw: "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" { mw, rkey, bind_info }
    ibv_send_wr_tso: "__typeof__(((struct ibv_send_wr *)0)->tso)" { hdr, hdr_sz, mss }
    ibv_recv_wr: "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge }
    ibv_qp: "struct ibv_qp" {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed,
    }
    ibv_comp_channel: "struct ibv_comp_channel" { context, fd, refcnt }
    ibv_cq: "struct ibv_cq" {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
    }
    ibv_context_ops: "struct ibv_context_ops" {
        _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr,
        _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq,
        req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq,
        _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp,
        _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
        _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event,
    }
    ibv_context: "struct ibv_context" {
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat,
    }
}

/// Unions, of which only the size is a question: their fields begin where they do.
const UNIONS: &[(&str, &str, usize)] = &[
    ("ibv_gid", "union ibv_gid", size_of::<ibv_gid>()),
    (
        "ibv_async_event_element",
        "__typeof__(((struct ibv_async_event *)0)->element)",
        size_of::<ibv_async_event_element>(),
    ),
    ("ibv_wc_data", "uint32_t", size_of::<ibv_wc_data>()),
    ("ibv_send_wr_data", "uint32_t", size_of::<ibv_send_wr_data>()),
    ("ibv_send_wr_wr", "__typeof__(((struct ibv_send_wr *)0)->wr)", size_of::<ibv_send_wr_wr>()),
    (
        "ibv_send_wr_qp_type",
        "__typeof__(((struct ibv_send_wr *)0)->qp_type)",
        size_of::<ibv_send_wr_qp_type>(),
    ),
    (
        "ibv_send_wr_extra",
        "__typeof__(((struct ibv_send_wr *)0)->bind_mw)",
        size_of::<ibv_send_wr_extra>(),
    ),
];

/// What the declarations say, as it is written there.
const DECLARATIONS: &str = include_str!("declarations.rs");

const HEADER: &str = "#include <infiniband/verbs.h>\n";

/// What verbs.h has no name for, in its words.
const IN_C: &str = "
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/types.h>
    #define BEFORE(field) (offsetof(struct verbs_context, context) - offsetof(struct verbs_context, field))
    enum {
        VERBS_CONTEXT_SZ_BEFORE = BEFORE(sz),
        VERBS_CONTEXT_QUERY_PORT_BEFORE = BEFORE(query_port),
        VERBS_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET,
    };
    #define SAME(a, b) __builtin_types_compatible_p(a, b)
";

fn layout_assertions() -> Vec<String> {
    let mut all = Vec::new();
    for Layout { name, c, bytes, grows, fields } in layouts() {
        let relation = if grows { ">=" } else { "==" };
        all.push(format!("_Static_assert(sizeof({c}) {relation} {bytes}, \"size of {name}\");"));
        for (field, offset) in fields {
            let says = format!("offset of {name}.{field}");
            all.push(format!("_Static_assert(offsetof({c}, {field}) == {offset}, \"{says}\");"));
        }
    }
    for (name, c, bytes) in UNIONS {
        all.push(format!("_Static_assert(sizeof({c}) == {bytes}, \"size of {name}\");"));
    }
    all
}

/// `pub const NAME: type = value;`
fn constant_assertions() -> Vec<String> {
    let constants = DECLARATIONS.lines().filter_map(|line| line.strip_prefix("pub const "));
    let assertion = |line: &str| {
        let (name, rest) = line.split_once(':').expect("a type");
        let (_, value) = rest.split_once(" = ").expect("a value");
        let value = value.trim_end_matches(';');
        format!("_Static_assert({name} == {value}, \"value of {name}\");")
    };
    constants.map(assertion).collect()
}

/// A type of a prototype in C's words.
fn c_type(ours: &str) -> String {
    let ours = ours.trim();
    for (prefix, constant) in [("*mut ", ""), ("*const ", "const ")] {
        if let Some(target) = ours.strip_prefix(prefix) {
            return format!("{constant}{} *", c_type(target));
        }
    }
    match ours {
        "" => "void".into(),
        "c_char" => "char".into(),
        "c_int" => "int".into(),
        "c_uint" => "unsigned int".into(),
        "c_void" => "void".into(),
        "usize" => "size_t".into(),
        "isize" => "ssize_t".into(),
        "u8" | "u32" | "u64" => format!("{}int{}_t", "u", &ours[1..]),
        "ibv_wc_status" | "ibv_wr_opcode" => format!("enum {ours}"),
        structure => format!("struct {structure}"),
    }
}

fn prototype_assertions() -> Vec<String> {
    let mut all = Vec::new();
    for (name, arguments, result) in declarations::PROTOTYPES {
        let arguments: Vec<String> = arguments.iter().map(|argument| c_type(argument)).collect();
        let ours = format!("{} (*)({})", c_type(result), arguments.join(", "));
        let same = format!("SAME(__typeof__(&{name}), {ours})");
        all.push(format!("_Static_assert({same}, \"prototype of {name}\");"));
    }
    let query_port = "int (*)(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t)";
    let theirs = "__typeof__(((struct verbs_context *)0)->query_port)";
    all.push(format!("_Static_assert(SAME({theirs}, {query_port}), \"query_port\");"));
    all
}

/// What the compiler complains of, or why there is none.
fn complaints(program: &str) -> Result<String, std::io::Error> {
    let mut cc = Command::new("cc")
        .args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // a compiler that ends early says why
    let _ = cc.stdin.take().expect("a pipe").write_all(program.as_bytes());
    let done = cc.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    Ok(if done.status.success() { String::new() } else { said })
}

/// False, after saying why, where there are no headers.
fn there_are_headers() -> bool {
    let reason = match complaints(HEADER) {
        Ok(said) if said.is_empty() => return true,
        Ok(said) => format!("there are no headers of libibverbs (libibverbs-dev): {said}"),
        Err(error) => format!("there is no C compiler ({error})"),
    };
    skip(None, &reason);
    false
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no compiler")]
fn layouts_constants_and_prototypes_are_those_of_the_headers() {
    if !there_are_headers() {
        return;
    }
    let assertions = [layout_assertions(), constant_assertions(), prototype_assertions()].concat();
    let said = complaints(&[HEADER, IN_C, &assertions.join("\n"), "\n"].concat()).unwrap();
    assert!(said.is_empty(), "{said}");
    // a compiler that believes everything would say nothing
    let wrong = "_Static_assert(sizeof(struct ibv_sge) == 17, \"size of ibv_sge\");\n";
    assert!(complaints(&[HEADER, wrong].concat()).unwrap().contains("size of ibv_sge"));
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no compiler")]
fn every_declaration_is_held_against_the_headers() {
    let named = |keyword: &str| -> Vec<String> {
        let lines = DECLARATIONS.lines().filter_map(|line| line.strip_prefix(keyword));
        lines.map(|rest| rest.trim_end_matches(" {").to_owned()).collect()
    };
    let layouts = layouts();
    let mut structures = named("pub struct ");
    structures.retain(|name| !layouts.iter().any(|layout| layout.name == name));
    assert_eq!(structures, [""; 0]);
    let mut unions = named("pub union ");
    unions.retain(|name| !UNIONS.iter().any(|(union, ..)| union == name));
    assert_eq!(unions, [""; 0]);
    assert!(constant_assertions().len() > 50 && declarations::PROTOTYPES.len() > 20);
}
