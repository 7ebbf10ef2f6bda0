// CUDA C for a C++ compiler: what kernels/*.cu say, with threads of a block as a loop, or as fibers where they meet at
// barriers. Put before each of them (-include). Knows no kernel.
#pragma once
#define SHIM

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__

#define DEVICE [[maybe_unused]] static inline
#define DEVICE_IN inline
#define DEVICE_OF inline
#define DEVICE_CALL [[maybe_unused]] static
// what a thread sums stays in registers, as on a GPU
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define UNROLL_BY(n)
#define KERNEL(kernel, Args) \
    static void kernel(const Args &a); \
    SHIM_ENTRY(false, kernel, Args, kernel) \
    static void kernel(const Args &a)
#define KERNEL_OF(kernel, suffix, Args, ...) SHIM_ENTRY(false, kernel##_##suffix, Args, kernel<__VA_ARGS__>)
#define BLOCK_KERNEL_OF(kernel, suffix, Args, ...) SHIM_ENTRY(true, kernel##_##suffix, Args, kernel<__VA_ARGS__>)
#define BLOCK_KERNEL(kernel, Args) \
    static void kernel(const Args &a); \
    SHIM_ENTRY(true, kernel, Args, kernel) \
    static void kernel(const Args &a)
#define SHIM_ENTRY(meets, name, Args, ...) \
    static_assert(sizeof(Args) % 8 == 0 && sizeof(Args) <= 4096, "an argument is at most 4096 bytes"); \
    static void shim_run_##name(const void *a) { __VA_ARGS__(*static_cast<const Args *>(a)); } \
    static shim::Entry shim_entry_##name(#name, sizeof(Args), shim_run_##name, meets);
#define SHARED(Type, name) Type &name = shim::shared<Type>()
#define IDLE_ON_CPU(is_idle) (is_idle)

// The kernels of a user's program are a library of their own, of which there may be many: the block of a thread's memory that
// is found fastest has no room for all.
#ifdef SHIM_OF_PROGRAM
#define SHIM_TLS
#else
#define SHIM_TLS __attribute__((tls_model("initial-exec")))
#endif

namespace shim {

struct Index {
    unsigned x, y, z;
};

// Where the code that runs is.
struct Here {
    Index thread, block, block_dim, grid_dim;
    unsigned char *shared;
    // of these, what a kernel asked for last
    size_t shared_bytes;
    // what a launch asked for, of a user's program
    unsigned char *dynamic;
};

extern __thread Here here SHIM_TLS;

const size_t SHARED_BYTES = 48 * 1024;

// A kernel, known by its name from when the library is loaded.
struct Entry {
    const char *name;
    size_t bytes;
    void (*run)(const void *);
    bool meets;
    Entry *next;
    Entry(const char *name, size_t bytes, void (*run)(const void *), bool meets);
};

// The block's memory: a kernel has one structure there.
template <class Type> Type &shared() {
    static_assert(sizeof(Type) <= SHARED_BYTES, "a block has 48 KiB");
    here.shared_bytes = sizeof(Type);
    return *reinterpret_cast<Type *>(here.shared);
}

void meet_block(int line);
// Gives what the thread of that lane gave.
uint64_t exchange(int line, unsigned mask, uint64_t own, unsigned lane);
unsigned ballot(int line, unsigned mask, bool own);

template <class T> T exchanged(int line, unsigned mask, T own, unsigned lane) {
    static_assert(sizeof(T) <= 8, "a register pair");
    uint64_t bits = 0;
    std::memcpy(&bits, &own, sizeof(T));
    bits = exchange(line, mask, bits, lane);
    std::memcpy(&own, &bits, sizeof(T));
    return own;
}

inline unsigned lane_of_thread() { return here.thread.x % 32; }

} // namespace shim

#define threadIdx (shim::here.thread)
#define blockIdx (shim::here.block)
#define blockDim (shim::here.block_dim)
#define gridDim (shim::here.grid_dim)

#define __syncthreads() shim::meet_block(__LINE__)
#define __syncwarp() shim::exchange(__LINE__, 0xffffffffu, 0, 0)
#define __ballot_sync(mask, predicate) shim::ballot(__LINE__, mask, predicate)
#define __shfl_sync(mask, value, lane) shim::exchanged(__LINE__, mask, value, lane)
#define __shfl_xor_sync(mask, value, apart) shim::exchanged(__LINE__, mask, value, shim::lane_of_thread() ^ (apart))

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

static inline unsigned long long atomicCAS(unsigned long long *at, unsigned long long compare, unsigned long long value) {
    return __sync_val_compare_and_swap(at, compare, value);
}

static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
    return __sync_fetch_and_add(at, value);
}
