// Runs kernels on the CPU, one block after the other. Threads that never meet are a loop; those that do are fibers, of
// which each runs until it waits at a barrier. Barriers of a block and of a warp are told apart, and by the line where they
// stand: threads that do not all come to the same one are an error, as is one that ends while others wait.
#include "cuda.hpp"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {

__thread Here here SHIM_TLS;

namespace {

const unsigned WARP = 32;
const unsigned THREADS_MAX = 1024;
const size_t STACK_BYTES = 128 * 1024;
const size_t ARGUMENT_MAX = 4096;
// of a block, of any GPU; and what is behind it, which nobody writes
const size_t DYNAMIC_MAX = 227 * 1024;
const size_t BEHIND_BYTES = 256;
const unsigned char BEHIND = 0xa5;

Entry *entries = nullptr;
thread_local char last_error[512] = "";
__thread uint64_t order SHIM_TLS = 0;

enum class State : unsigned char { Ready, AtBlock, AtWarp, Done };

#if defined(__x86_64__)

// Saves the registers that a call keeps on this stack, and goes on with those of another.
extern "C" void shim_switch(void **save, void *load);
asm(R"(
.text
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch, .-shim_switch
)");

struct Context {
    void *stack_pointer;

    // `stack` is where it begins, from which it grows down.
    void prepare(unsigned char *stack, void (*entry)()) {
        void **top = reinterpret_cast<void **>(stack);
        // as a call leaves it: the address to return to at 8 below a multiple of 16
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(entry);
        for (int i = 0; i < 6; i++) *--top = nullptr;
        stack_pointer = top;
    }
    static void change(Context &from, Context &to) { shim_switch(&from.stack_pointer, to.stack_pointer); }
};

#else

struct Context {
    ucontext_t context;

    void prepare(unsigned char *stack, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack - STACK_BYTES / 2;
        context.uc_stack.ss_size = STACK_BYTES / 2;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
    static void change(Context &from, Context &to) { swapcontext(&from.context, &to.context); }
};

#endif

struct Fiber {
    Context context;
    Index index;
    // of the exchanges of a warp, every other one has the same place
    unsigned turn;
};

// What one thread of the system runs blocks with.
struct Machine {
    Fiber fibers[THREADS_MAX];
    // of each thread, and the line where it waits
    State states[THREADS_MAX];
    int lines[THREADS_MAX];
    uint64_t given[THREADS_MAX / WARP][2][WARP];
    Context scheduler;
    unsigned running;
    // of the warp whose turn it is: its first thread, how many had their turn, how many of these wait for the warp
    unsigned warp, turns, at_warp;
    const Entry *entry;
    const void *arguments;
    unsigned char *stacks;
    unsigned char *dynamic;
    alignas(64) unsigned char shared[SHARED_BYTES];

    Machine() : stacks(pages(STACK_BYTES * THREADS_MAX)), dynamic(pages(DYNAMIC_MAX + BEHIND_BYTES)) {}
    ~Machine() {
        if (stacks) munmap(stacks, STACK_BYTES * THREADS_MAX);
        if (dynamic) munmap(dynamic, DYNAMIC_MAX + BEHIND_BYTES);
    }

    // The system gives a page when it is touched.
    static unsigned char *pages(size_t bytes) {
        void *memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return memory == MAP_FAILED ? nullptr : static_cast<unsigned char *>(memory);
    }
};

__thread Machine *machine SHIM_TLS = nullptr;

struct MachineOfThread {
    ~MachineOfThread() {
        delete machine;
        machine = nullptr;
    }
};

Machine *machine_here() {
    static thread_local MachineOfThread owner;
    (void)owner;
    if (!machine) machine = new Machine();
    return machine;
}

int fail(const char *kernel, const char *what) {
    std::snprintf(last_error, sizeof last_error, "%s: %s", kernel, what);
    return 1;
}

// Goes on with the next thread of the warp that can, or with the scheduler where there is none.
inline void go_on(Machine &m, Context &from) {
    while (m.turns < WARP) {
        unsigned i = m.turns++;
        // in another order for another seed
        unsigned thread = m.warp + (order ? (i * 5 + unsigned(order % WARP)) % WARP : i);
        if (m.states[thread] != State::Ready) continue;
        m.running = thread;
        here.thread = m.fibers[thread].index;
        Context::change(from, m.fibers[thread].context);
        return;
    }
    // the scheduler itself comes here where no thread can go on
    if (&from != &m.scheduler) Context::change(from, m.scheduler);
}

void fiber_main() {
    Machine &m = *machine;
    m.entry->run(m.arguments);
    m.states[m.running] = State::Done;
    go_on(m, m.fibers[m.running].context);
    std::abort();
}

void wait(State state, int line) {
    Machine &m = *machine;
    m.states[m.running] = state;
    m.lines[m.running] = line;
    m.at_warp += state == State::AtWarp;
    go_on(m, m.fibers[m.running].context);
}

// True if all of these wait in the same way at the same line.
bool all_wait(const Machine &m, unsigned first, unsigned end, State state) {
    int differ = 0;
    for (unsigned i = first; i < end; i++) differ |= m.states[i] != state;
    for (unsigned i = first; i < end; i++) differ |= m.lines[i] ^ m.lines[first];
    return !differ;
}

// Runs a warp until none of its threads can go on by themselves. False where they wait for each other in vain.
bool run_warp(Machine &m, unsigned first) {
    for (;;) {
        m.warp = first;
        m.turns = 0;
        m.at_warp = 0;
        go_on(m, m.scheduler);
        if (m.at_warp == 0) return true;
        if (!all_wait(m, first, first + WARP, State::AtWarp)) return false;
        std::memset(&m.states[first], int(State::Ready), WARP);
    }
}

int diverges(const Machine &m, unsigned first, unsigned end) {
    const char *names[] = {"ready", "at a block's barrier", "at a warp's barrier", "done"};
    for (unsigned i = first; i < end; i++) {
        if (m.states[first] == m.states[i] && m.lines[first] == m.lines[i]) continue;
        char what[256];
        std::snprintf(what, sizeof what, "threads of block %u diverge: thread %u is %s of line %d, thread %u %s of line %d",
                      here.block.x, first, names[int(m.states[first])], m.lines[first], i, names[int(m.states[i])], m.lines[i]);
        return fail(m.entry->name, what);
    }
    return fail(m.entry->name, "threads diverge");
}

int run_fibers(Machine &m, unsigned threads) {
    if (!m.stacks) return fail(m.entry->name, "no memory for stacks");
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = m.fibers[i];
        // not all at the same places of pages, which share places in a cache
        fiber.context.prepare(m.stacks + (i + 1) * STACK_BYTES - i % 61 * 192, fiber_main);
        fiber.turn = 0;
    }
    std::memset(m.states, int(State::Ready), threads);
    std::memset(m.lines, 0, threads * sizeof m.lines[0]);
    for (;;) {
        for (unsigned warp = 0; warp < threads; warp += WARP) {
            unsigned first = order % 2 ? threads - WARP - warp : warp;
            if (!run_warp(m, first)) return diverges(m, first, first + WARP);
        }
        // all have come to their ends
        if (!std::memchr(m.states, int(State::AtBlock), threads)) return 0;
        if (!all_wait(m, 0, threads, State::AtBlock)) return diverges(m, 0, threads);
        std::memset(m.states, int(State::Ready), threads);
    }
}

void run_loop(Machine &m, unsigned threads) {
    for (unsigned i = 0; i < threads; i++) {
        here.thread = m.fibers[i].index;
        m.entry->run(m.arguments);
    }
}

uint64_t greatest_common_divisor(uint64_t a, uint64_t b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }

// The block that comes `turn`th: in their order, or in another one for each seed.
uint64_t block_at(uint64_t turn, uint64_t blocks) {
    if (order == 0) return turn;
    uint64_t step = order % blocks | 1;
    while (greatest_common_divisor(step, blocks) != 1) step += 2;
    return (uint64_t((unsigned __int128)turn * step % blocks) + order % blocks) % blocks;
}

// True if a block wrote behind the dynamic shared memory that it has.
bool wrote_behind(const Machine &m, size_t dynamic_bytes) {
    for (size_t i = 0; i < BEHIND_BYTES; i++)
        if (m.dynamic[dynamic_bytes + i] != BEHIND) return true;
    return false;
}

int run(const Entry &entry, const unsigned grid[3], const unsigned block[3], size_t dynamic_bytes, const void *arguments) {
    Machine &m = *machine_here();
    if (!m.dynamic) return fail(entry.name, "no memory for blocks");
    unsigned threads = block[0] * block[1] * block[2];
    m.entry = &entry;
    m.arguments = arguments;
    for (unsigned i = 0; i < threads; i++)
        m.fibers[i].index = Index{i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    here.block_dim = Index{block[0], block[1], block[2]};
    here.grid_dim = Index{grid[0], grid[1], grid[2]};
    here.shared = m.shared;
    here.shared_bytes = SHARED_BYTES;
    here.dynamic = m.dynamic;
    if (dynamic_bytes) std::memset(m.dynamic + dynamic_bytes, BEHIND, BEHIND_BYTES);
    uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
    for (uint64_t turn = 0; turn < blocks; turn++) {
        uint64_t at = block_at(turn, blocks);
        here.block = Index{unsigned(at % grid[0]), unsigned(at / grid[0] % grid[1]), unsigned(at / grid[0] / grid[1])};
        // what nobody wrote is no number
        std::memset(m.dynamic, 0xff, dynamic_bytes);
        if (!entry.meets) {
            run_loop(m, threads);
        } else {
            std::memset(m.shared, 0xff, here.shared_bytes);
            if (int failed = run_fibers(m, threads)) return failed;
        }
        if (dynamic_bytes && wrote_behind(m, dynamic_bytes)) return fail(entry.name, "it writes behind its dynamic shared memory");
    }
    return 0;
}

const Entry *find(const char *name) {
    for (const Entry *entry = entries; entry; entry = entry->next)
        if (std::strcmp(entry->name, name) == 0) return entry;
    return nullptr;
}

bool fits(const unsigned grid[3], const unsigned block[3]) {
    bool some = grid[0] && grid[1] && grid[2] && block[0] && block[1] && block[2];
    bool blocks = grid[0] <= 0x7fffffffu && grid[1] <= 65535 && grid[2] <= 65535;
    return some && blocks && block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 &&
           uint64_t(block[0]) * block[1] * block[2] <= THREADS_MAX;
}

} // namespace

Entry::Entry(const char *name, size_t bytes, void (*run)(const void *), bool meets)
    : name(name), bytes(bytes), run(run), meets(meets), next(entries) {
    entries = this;
}

void meet_block(int line) { wait(State::AtBlock, line); }

uint64_t exchange(int line, unsigned mask, uint64_t own, unsigned lane) {
    Machine &m = *machine;
    Fiber &fiber = m.fibers[m.running];
    uint64_t *given = m.given[m.running / WARP][fiber.turn++ % 2];
    given[m.running % WARP] = own;
    // a part of a warp that meets by itself is not of use here
    wait(mask == 0xffffffffu ? State::AtWarp : State::AtBlock, line);
    return given[lane % WARP];
}

unsigned ballot(int line, unsigned mask, bool own) {
    Machine &m = *machine;
    Fiber &fiber = m.fibers[m.running];
    uint64_t *given = m.given[m.running / WARP][fiber.turn++ % 2];
    given[m.running % WARP] = own;
    wait(mask == 0xffffffffu ? State::AtWarp : State::AtBlock, line);
    unsigned all = 0;
    for (unsigned i = 0; i < WARP; i++) all |= unsigned(given[i] != 0) << i;
    return all;
}

} // namespace shim

extern "C" {

// Runs a kernel to its end; 0 where nothing went wrong. May be called from several threads at a time.
__attribute__((visibility("default"))) int tensorwire_shim_launch(const char *name, const unsigned grid[3],
                                                                  const unsigned block[3], unsigned shared_bytes,
                                                                  const void *arguments, size_t argument_bytes) {
    using namespace shim;
    const Entry *entry = find(name);
    if (!entry) return fail(name, "no such kernel");
    if (!fits(grid, block)) return fail(name, "no device runs such a grid");
#ifdef SHIM_OF_PROGRAM
    if (shared_bytes > DYNAMIC_MAX) return fail(name, "no device has so much shared memory");
#else
    if (shared_bytes != 0) return fail(name, "dynamic shared memory is not asked for by any kernel");
#endif
    if (argument_bytes != entry->bytes) {
        char what[128];
        std::snprintf(what, sizeof what, "its argument has %zu bytes, not %zu", entry->bytes, argument_bytes);
        return fail(name, what);
    }
    if (entry->meets && block[0] * block[1] * block[2] % WARP != 0) return fail(name, "a warp has 32 threads");
    // as a launch does it: what the caller changes then is not seen
    alignas(16) unsigned char copy[ARGUMENT_MAX];
    std::memcpy(copy, arguments, argument_bytes);
    return run(*entry, grid, block, shared_bytes, copy);
}

// What went wrong last on this thread.
__attribute__((visibility("default"))) const char *tensorwire_shim_error(void) { return shim::last_error; }

// 1 where there is a kernel of this name, else 0.
__attribute__((visibility("default"))) int tensorwire_shim_has(const char *name) {
    return shim::find(name) != nullptr;
}

// The name of kernel `at`, counted from 0 in any order; null behind the last.
__attribute__((visibility("default"))) const char *tensorwire_shim_kernel(size_t at) {
    const shim::Entry *entry = shim::entries;
    for (; entry && at > 0; at--) entry = entry->next;
    return entry ? entry->name : nullptr;
}

// Lets blocks and warps of this thread's launches run in another order for each seed; in their own for 0.
__attribute__((visibility("default"))) void tensorwire_shim_order(unsigned long long seed) { shim::order = seed; }
}
