// Kernels of the tests. A GPU's compiler makes kernels.ptx of them, a C++ compiler a library that a driver without a GPU
// runs them with.

#ifdef __CUDACC__
#define KERNEL extern "C" __global__ void
#define FAIL(why) __trap()
#else
struct Three { unsigned x, y, z; };
static thread_local Three gridDim, blockDim, blockIdx, threadIdx;
static thread_local const char *failure;
#define KERNEL static void
#define FAIL(why) (failure = why)
#endif

static_assert(sizeof(long long) == 8 && sizeof(double *) == 8, "all fields have 8 bytes");

struct Axpy { const double *x; double *y; long long count; double factor; };

KERNEL axpy(Axpy of) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < of.count) of.y[at] += of.factor * of.x[at];
}

struct Mix { unsigned long long *word; unsigned long long value; };

// What it leaves says which values came, and in which order.
KERNEL mix(Mix of) { *of.word = *of.word * 0x9e3779b97f4a7c15ull + of.value; }

struct Spin { unsigned long long *word; long long rounds; };

// Takes a while.
KERNEL spin(Spin of) {
    unsigned long long state = *of.word;
    for (long long round = 0; round < of.rounds; round++) state = state * 6364136223846793005ull + 1442695040888963407ull;
    *of.word = state;
}

struct Nothing { long long nothing; };

KERNEL trap(Nothing) { FAIL("it was told to"); }

#ifndef __CUDACC__
#include <cstring>

template <class T, void (*kernel)(T)>
static int run(const unsigned grid[3], const unsigned block[3], const void *bytes, size_t size) {
    T argument;
    if (size != sizeof(T) && size != 0) return 1;
    if (size) memcpy(&argument, bytes, size);
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (blockIdx = {0, 0, 0}; blockIdx.x < grid[0]; blockIdx.x++)
        for (threadIdx = {0, 0, 0}; threadIdx.x < block[0]; threadIdx.x++) kernel(argument);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(const unsigned *, const unsigned *, const void *, size_t);
} kernels[] = {{"axpy", run<Axpy, axpy>}, {"mix", run<Mix, mix>}, {"spin", run<Spin, spin>}, {"trap", run<Nothing, trap>}};

extern "C" const char *tensorwire_shim_error(void) { return failure; }

extern "C" int tensorwire_shim_has(const char *name) {
    for (auto &kernel : kernels)
        if (!strcmp(kernel.name, name)) return 1;
    return 0;
}

extern "C" int tensorwire_shim_launch(const char *name, const unsigned grid[3], const unsigned block[3], unsigned,
                                      const void *arguments, size_t bytes) {
    failure = nullptr;
    for (auto &kernel : kernels) {
        if (strcmp(kernel.name, name)) continue;
        if (kernel.run(grid, block, arguments, bytes)) failure = "the arguments are not its structure";
        return failure != nullptr;
    }
    failure = "there is no such kernel";
    return 1;
}
#endif
