/* What `cargo xtask verbs-declarations` has bindgen read. */
#include <stddef.h>
#include <infiniband/verbs.h>

/* The inline functions of verbs.h find what a provider adds to a context by its distance before the context:
 * struct verbs_context has a struct ibv_context at its end, and grows at its beginning. */
enum verbs_context_before {
	VERBS_CONTEXT_SZ_BEFORE =
		offsetof(struct verbs_context, context) - offsetof(struct verbs_context, sz),
	VERBS_CONTEXT_QUERY_PORT_BEFORE =
		offsetof(struct verbs_context, context) - offsetof(struct verbs_context, query_port),
};

/* C has no name for the kinds of links. */
enum verbs_link_layer {
	VERBS_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET,
};
