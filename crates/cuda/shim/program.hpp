// A user's own CUDA C for a C++ compiler: put before it, behind cuda.hpp. Its kernels take their arguments one by one, as any
// of CUDA's do, and are found by SHIM_PROGRAM_ENTRY, a line for each behind the source. Knows no kernel.
#pragma once
#include <cstdio>
#include <string>
#include <tuple>
#include <type_traits>

// what the project's kernels alone are written with
#undef SHIM
#undef DEVICE
#undef DEVICE_IN
#undef DEVICE_OF
#undef DEVICE_CALL
#undef UNROLL
#undef UNROLL_BY
#undef KERNEL
#undef KERNEL_OF
#undef BLOCK_KERNEL_OF
#undef BLOCK_KERNEL
#undef SHARED

#define __global__
#define __constant__ static
// the threads of a block are fibers of one thread of the system, and its blocks come one after the other
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define warpSize 32

#define __shfl_up_sync(mask, value, apart) \
    shim::exchanged(__LINE__, mask, value, \
                    shim::lane_of_thread() >= unsigned(apart) ? shim::lane_of_thread() - (apart) : shim::lane_of_thread())
#define __shfl_down_sync(mask, value, apart) \
    shim::exchanged(__LINE__, mask, value, \
                    shim::lane_of_thread() + (apart) < 32 ? shim::lane_of_thread() + (apart) : shim::lane_of_thread())

template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline double rsqrt(double x) { return 1 / std::sqrt(x); }
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

namespace shim {

// A block's dynamic shared memory: at the same place for all that a thread of the system runs.
inline unsigned char *dynamic() { return here.dynamic; }

// The next parameter, where C puts it behind those before.
template <class P> P take(const void *arguments, size_t &at) {
    at = (at + alignof(P) - 1) / alignof(P) * alignof(P);
    P value;
    std::memcpy(&value, static_cast<const char *>(arguments) + at, sizeof(P));
    at += sizeof(P);
    return value;
}

template <class... P> void call(void (*kernel)(P...), const void *arguments) {
    size_t at = 0;
    // in their order: they stand in braces
    std::tuple<P...> all{take<P>(arguments, at)...};
    std::apply(kernel, all);
    (void)at;
}

template <class... P> constexpr size_t bytes_of(void (*)(P...)) {
    size_t at = 0;
    ((at = (at + alignof(P) - 1) / alignof(P) * alignof(P) + sizeof(P)), ...);
    return at;
}

// What PTX calls a parameter's type.
template <class P> std::string type_of(const std::string &name) {
    const std::string bits = std::to_string(8 * sizeof(P));
    if (std::is_floating_point<P>::value) return ".param .f" + bits + " " + name;
    if (std::is_pointer<P>::value || std::is_integral<P>::value || std::is_enum<P>::value) return ".param .u" + bits + " " + name;
    return ".param .align " + std::to_string(alignof(P)) + " .b8 " + name + "[" + std::to_string(sizeof(P)) + "]";
}

// The kernels of this program, as PTX declares them.
inline std::string &declared() {
    static std::string text;
    return text;
}

struct Declaration {
    template <class... P> Declaration(const char *name, void (*)(P...)) {
        std::string &text = declared();
        const char *between = "\n\t";
        int at = 0;
        text += std::string(".visible .entry ") + name + "(";
        (void)at;
        ((text += between + type_of<P>(std::string(name) + "_param_" + std::to_string(at++)), between = ",\n\t"), ...);
        text += "\n)\n{\n\tret;\n}\n";
    }
};

} // namespace shim

#define SHIM_PROGRAM_ENTRY(name, meets) \
    static void shim_run_##name(const void *a) { shim::call(name, a); } \
    static shim::Entry shim_entry_##name(#name, shim::bytes_of(name), shim_run_##name, meets); \
    static shim::Declaration shim_declaration_##name(#name, name);

#define SHIM_PROGRAM_END \
    extern "C" __attribute__((visibility("default"))) const char *tensorwire_program_entries(void) { \
        return shim::declared().c_str(); \
    }
