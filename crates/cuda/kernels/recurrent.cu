// Recurrent cells over sequences of many lengths, a launch for each step: the recurrent products of all gates, and the cell
// behind them. Which rows a step has is in memory of the device. Row order is step 0's sequences, then step 1's, …
#include "device.cuh"

enum Cell { RNN = 0, GRU, LSTM };

const i32 GATES_MAX = 4;
// Sequences and hidden units of a tile.
const i32 TILE_ROWS = 32;
const i32 TILE_UNITS = 16;
// Rows of a tile that a thread has.
const i32 OWN = 4;

template <i32 CELL> DEVICE constexpr i32 gates_of() { return CELL == RNN ? 1 : CELL == GRU ? 3 : 4; }
template <i32 CELL> DEVICE constexpr i32 saved_of() { return CELL == RNN ? 0 : CELL == GRU ? 4 : 5; }

// One block adds up how many sequences are not over at each step: where each step's rows begin, and where the last ones
// end. They never rise, are 1..batch, and are `total` together; else there are no rows at all, and a fault.
struct FirstRows {
    i64 steps;
    i64 batch;
    i64 total;
    const i32 *active;
    // one more than steps
    i64 *first_rows;
    Fault *fault;
    u64 active_code;
    u64 total_code;
};

struct Chunk {
    i32 active[THREADS];
};

BLOCK_KERNEL(first_rows, FirstRows) {
    SHARED(Chunk, chunk);
    i64 most = a.batch, sum = 0;
    bool is_wrong = false;
    UNROLL_BY(1) for (i64 first = 0; first < a.steps; first += THREADS) {
        i64 own = first + threadIdx.x;
        __syncthreads();
        chunk.active[threadIdx.x] = own < a.steps ? a.active[own] : 0;
        __syncthreads();
        if (threadIdx.x != 0) continue;
        UNROLL_BY(1) for (i64 step = first; step < least(first + THREADS, a.steps) && !is_wrong; step++) {
            i64 found = chunk.active[step - first];
            if (found < 1 || found > most) {
                report(a.fault, a.active_code, step, (i64)(u32)found | most << 32);
                is_wrong = true;
            }
            a.first_rows[step] = sum;
            sum += found;
            most = found;
        }
    }
    if (threadIdx.x != 0) return;
    a.first_rows[a.steps] = sum;
    if (!is_wrong && sum != a.total) {
        report(a.fault, a.total_code, 0, sum);
        is_wrong = true;
    }
    if (!is_wrong) return;
    UNROLL_BY(1) for (i64 step = 0; step <= a.steps; step++) a.first_rows[step] = 0;
}

// The states before the first step, as the steps work on them, and as they are behind the last one of no sequence.
struct Begin {
    i64 count;
    i64 narrow;
    i64 states;
    const void *first[2];
    void *working[2];
    void *finals[2];
};

template <class T> DEVICE void recurrent_begin(const Begin &a) {
    UNROLL_BY(1) for (i64 state = 0; state < a.states; state++) {
        From<T> first = {a.first[state], a.narrow, 0};
        Into<T> finals = {a.finals[state], a.narrow, 0};
        UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
            T x = first[i];
            ((T *)a.working[state])[i] = x;
            finals.put(i, x);
        }
    }
}
OF_REALS(KERNEL_OF, recurrent_begin, Begin)

struct Step {
    i64 step;
    i64 steps;
    i64 hidden;
    i64 narrow;
    // of what is multiplied and not narrow, as Factors have it
    i64 rounding;
    const i64 *first_rows;
    const void *products[GATES_MAX];
    const void *matrices[GATES_MAX];
    // [batch, h], not narrow: h before the step and after it, and c, which changes in place
    const void *h;
    void *new_h;
    void *c;
    void *y;
    void *finals[2];
    void *saved;
};

const i32 STEP_SLICE = 32;

template <class T, i32 GATES> struct StepSlices {
    T h[STEP_SLICE][TILE_ROWS + 4];
    T u[GATES][STEP_SLICE][TILE_UNITS + 1];
};

template <class T, i32 GATES> union alignas(16) StepRoom {
    StepSlices<T, GATES> slices;
    // of both halves of the threads
    T sums[2][GATES][TILE_ROWS][TILE_UNITS];
};

// How many rows a step has, 0 behind the last.
DEVICE i64 rows_of(const i64 *first_rows, i64 step, i64 steps) {
    return step < steps ? first_rows[step + 1] - first_rows[step] : 0;
}

// What a cell makes of its gates' products: `new_h`, and what is saved. c changes.
template <class T, i32 CELL>
DEVICE T cell(const T (&x)[GATES_MAX], const T (&u)[GATES_MAX], T old_h, T &c, T (&saved)[5]) {
    if (CELL == RNN) return tanh_of(x[0] + u[0]);
    if (CELL == GRU) {
        T r = sigmoid(x[0] + u[0]), z = sigmoid(x[1] + u[1]), n = tanh_of(x[2] + r * u[2]);
        saved[0] = r;
        saved[1] = z;
        saved[2] = n;
        saved[3] = u[2];
        return (T(1) - z) * n + z * old_h;
    }
    T i = sigmoid(x[0] + u[0]), f = sigmoid(x[1] + u[1]), g = tanh_of(x[2] + u[2]), o = sigmoid(x[3] + u[3]);
    c = f * c + i * g;
    saved[0] = i;
    saved[1] = f;
    saved[2] = g;
    saved[3] = o;
    saved[4] = c;
    return o * tanh_of(c);
}

// Half of the threads add over half of the inner dimension; each has OWN rows and all gates of one unit.
template <class T, i32 CELL> DEVICE void recurrent_step(const Step &a) {
    const i32 GATES = gates_of<CELL>(), SAVED = saved_of<CELL>();
    SHARED(StepRoom<T COMMA gates_of<CELL>()>, room);
    i64 hidden = a.hidden, rows = rows_of(a.first_rows, a.step, a.steps);
    i64 tiles = (hidden + TILE_UNITS - 1) / TILE_UNITS;
    i64 unit_first = blockIdx.x % tiles * TILE_UNITS, row_first = blockIdx.x / tiles * TILE_ROWS;
    if (row_first >= rows) return;
    i32 thread = (i32)threadIdx.x, half = thread / (THREADS / 2), place = thread % (THREADS / 2);
    i32 own_unit = place % TILE_UNITS, own_row = place / TILE_UNITS * OWN;
    T sums[GATES][OWN];
    UNROLL for (i32 g = 0; g < GATES; g++) UNROLL for (i32 i = 0; i < OWN; i++) sums[g][i] = T(0);
    bool is_idle = IDLE_ON_CPU(row_first + own_row >= rows || unit_first + own_unit >= hidden);
    i32 k = thread % STEP_SLICE, line = thread / STEP_SLICE;
    const i32 LINES = THREADS / STEP_SLICE;
    UNROLL_BY(1) for (i64 first = 0; first < hidden; first += STEP_SLICE) {
        bool is_there = first + k < hidden;
        __syncthreads();
        UNROLL for (i32 row = 0; row < TILE_ROWS; row += LINES) {
            i64 at = row_first + row + line;
            room.slices.h[k][row + line] =
                is_there && at < rows ? Factors<T>{a.h, a.rounding, 0}[at * hidden + first + k] : T(0);
        }
        UNROLL for (i32 g = 0; g < GATES; g++) {
            Factors<T> u = {a.matrices[g], a.narrow ? 1 : a.rounding, 0};
            UNROLL for (i32 unit = 0; unit < TILE_UNITS; unit += LINES) {
                i64 at = unit_first + unit + line;
                room.slices.u[g][k][unit + line] = is_there && at < hidden ? u[at * hidden + first + k] : T(0);
            }
        }
        __syncthreads();
        if (!is_idle) UNROLL_BY(2) for (i32 j = 0; j < STEP_SLICE / 2; j++) {
            i32 at = half * (STEP_SLICE / 2) + j;
            T h[OWN];
            UNROLL for (i32 i = 0; i < OWN; i++) h[i] = room.slices.h[at][own_row + i];
            UNROLL for (i32 g = 0; g < GATES; g++) {
                T u = room.slices.u[g][at][own_unit];
                UNROLL for (i32 i = 0; i < OWN; i++) sums[g][i] = fused(u, h[i], sums[g][i]);
            }
        }
    }
    __syncthreads();
    UNROLL for (i32 g = 0; g < GATES; g++) UNROLL for (i32 i = 0; i < OWN; i++)
        room.sums[half][g][own_row + i][own_unit] = sums[g][i];
    __syncthreads();
    i64 start = a.first_rows[a.step], going_on = rows_of(a.first_rows, a.step + 1, a.steps);
    UNROLL_BY(1) for (i32 own = thread; own < TILE_ROWS * TILE_UNITS; own += THREADS) {
        i32 row_in = own / TILE_UNITS, unit_in = own % TILE_UNITS;
        i64 sequence = row_first + row_in, unit = unit_first + unit_in;
        if (sequence >= rows || unit >= hidden) continue;
        i64 row = start + sequence, at = row * hidden + unit, kept = sequence * hidden + unit;
        T x[GATES_MAX], u[GATES_MAX], saved[5], c = CELL == LSTM ? ((const T *)a.c)[kept] : T(0);
        UNROLL for (i32 g = 0; g < GATES; g++) {
            x[g] = From<T>{a.products[g], a.narrow, 0}[at];
            u[g] = room.sums[0][g][row_in][unit_in] + room.sums[1][g][row_in][unit_in];
        }
        T h = cell<T, CELL>(x, u, ((const T *)a.h)[kept], c, saved);
        ((T *)a.new_h)[kept] = h;
        Into<T>{a.y, a.narrow, 0}.put(at, h);
        if (CELL == LSTM) ((T *)a.c)[kept] = c;
        UNROLL for (i32 what = 0; what < SAVED; what++)
            Into<T>{a.saved, a.narrow, 0}.put((row * SAVED + what) * hidden + unit, saved[what]);
        // behind the last step of its sequence
        if (sequence < going_on) continue;
        Into<T>{a.finals[0], a.narrow, 0}.put(kept, h);
        if (CELL == LSTM) Into<T>{a.finals[1], a.narrow, 0}.put(kept, c);
    }
}
#define STEP_OF(kernel, suffix, Args, T) \
    BLOCK_KERNEL_OF(kernel, rnn_##suffix, Args, T, RNN) \
    BLOCK_KERNEL_OF(kernel, gru_##suffix, Args, T, GRU) \
    BLOCK_KERNEL_OF(kernel, lstm_##suffix, Args, T, LSTM)
OF_REALS(STEP_OF, recurrent_step, Step)

// Back by one step. What flows into a state behind the step is what the next step's gates got of it, and what went past
// them; for a sequence that ended here it is its final state's gradient. Step −1 has the states before the first.
struct Back {
    i64 step;
    i64 steps;
    i64 batch;
    i64 hidden;
    i64 narrow;
    i64 rounding;
    const i64 *first_rows;
    // or nothing, which is 0
    const void *dy;
    const void *dfinals[2];
    const void *matrices[GATES_MAX];
    const void *first[2];
    const void *y;
    const void *saved;
    // [total, h] of each gate, not narrow: what reaches its recurrent product
    void *back[GATES_MAX];
    // of each gate its product's gradient, or nothing where that is the same and lies there
    void *products[GATES_MAX];
    // [batch, h], not narrow: what goes past the gates into h, and the gradient of c
    void *past;
    void *dc;
    // of step −1
    void *dfirst[2];
};

const i32 BACK_SLICE = 64;

template <class T> struct BackSlices {
    T back[BACK_SLICE][TILE_ROWS + 4];
    T u[BACK_SLICE][TILE_UNITS + 4];
};

template <class T> union alignas(16) BackRoom {
    BackSlices<T> slices;
    // of each warp
    T sums[THREADS / WARP][TILE_ROWS][TILE_UNITS];
};

// Σ over gates and units of what reached them in the next step, for a tile of its sequences and of units of h: into
// room.sums, one addend for each warp.
template <class T, i32 GATES>
DEVICE void flowing_back(const Back &a, BackRoom<T> &room, i64 row_first, i64 rows, i64 unit_first) {
    const i32 WARPS = THREADS / WARP, GROUPS = TILE_UNITS / OWN;
    i64 hidden = a.hidden, start = a.first_rows[a.step + 1], depth = GATES * hidden;
    i32 thread = (i32)threadIdx.x, own_row = lane() / GROUPS * OWN, own_unit = lane() % GROUPS * OWN;
    T sums[OWN][OWN];
    UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++) sums[i][j] = T(0);
    bool is_idle = IDLE_ON_CPU(row_first + own_row >= rows || unit_first + own_unit >= hidden);
    UNROLL_BY(1) for (i64 first = 0; first < depth; first += BACK_SLICE) {
        __syncthreads();
        {
            i32 k = thread % BACK_SLICE;
            i64 at = first + k, gate = at / hidden;
            const T *back = at < depth ? (const T *)a.back[gate] + at % hidden : nullptr;
            UNROLL for (i32 j = thread / BACK_SLICE; j < TILE_ROWS; j += THREADS / BACK_SLICE) {
                bool is_there = back && row_first + j < rows;
                room.slices.back[k][j] =
                    is_there ? Factors<T>{back, a.rounding, 0}[(start + row_first + j) * hidden] : T(0);
            }
        }
        UNROLL for (i32 k = thread / TILE_UNITS; k < BACK_SLICE; k += THREADS / TILE_UNITS) {
            i64 at = first + k, gate = at / hidden, unit = unit_first + thread % TILE_UNITS;
            bool is_there = at < depth && unit < hidden;
            room.slices.u[k][thread % TILE_UNITS] =
                is_there ? Factors<T>{a.matrices[gate], a.narrow ? 1 : a.rounding, 0}[at % hidden * hidden + unit] : T(0);
        }
        __syncthreads();
        if (!is_idle) UNROLL_BY(2) for (i32 j = 0; j < BACK_SLICE / WARPS; j++) {
            i32 k = warp() * (BACK_SLICE / WARPS) + j;
            T left[OWN], right[OWN];
            UNROLL for (i32 i = 0; i < OWN; i++) {
                left[i] = room.slices.back[k][own_row + i];
                right[i] = room.slices.u[k][own_unit + i];
            }
            UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 m = 0; m < OWN; m++)
                sums[i][m] = fused(left[i], right[m], sums[i][m]);
        }
    }
    __syncthreads();
    UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++)
        room.sums[warp()][own_row + i][own_unit + j] = sums[i][j];
    __syncthreads();
}

// Of dh, and dc behind the step, the gradients of the gates' products, and of what reaches the recurrent ones.
template <class T, i32 CELL>
DEVICE void cell_back(const Back &a, i64 row, i64 before, i64 sequence, i64 unit, T dh, T dc, T (&d)[GATES_MAX],
                      T (&back)[GATES_MAX]) {
    i64 hidden = a.hidden, kept = sequence * hidden + unit;
    const i32 SAVED = saved_of<CELL>();
    From<T> y = {a.y, a.narrow, 0}, saved = {a.saved, a.narrow, row * SAVED * hidden + unit};
    if (CELL == RNN) {
        T h = y[row * hidden + unit];
        back[0] = d[0] = dh * (T(1) - h * h);
    } else if (CELL == GRU) {
        T r = saved[0], z = saved[hidden], n = saved[2 * hidden], un = saved[3 * hidden];
        T old = before < 0 ? From<T>{a.first[0], a.narrow, 0}[kept] : y[before * hidden + unit];
        T dn = dh * (T(1) - z) * (T(1) - n * n);
        back[1] = d[1] = dh * (old - n) * z * (T(1) - z);
        back[0] = d[0] = dn * un * r * (T(1) - r);
        d[2] = dn;
        back[2] = dn * r;
        ((T *)a.past)[kept] = dh * z;
    } else {
        T i = saved[0], f = saved[hidden], g = saved[2 * hidden], o = saved[3 * hidden], c = saved[4 * hidden];
        From<T> all = {a.saved, a.narrow, 0};
        T old = before < 0 ? From<T>{a.first[1], a.narrow, 0}[kept] : all[(before * SAVED + 4) * hidden + unit];
        T squashed = tanh_of(c);
        dc = dc + dh * o * (T(1) - squashed * squashed);
        back[0] = d[0] = dc * g * i * (T(1) - i);
        back[1] = d[1] = dc * old * f * (T(1) - f);
        back[2] = d[2] = dc * i * (T(1) - g * g);
        back[3] = d[3] = dh * squashed * o * (T(1) - o);
        ((T *)a.dc)[kept] = dc * f;
    }
}

template <class T, i32 CELL> DEVICE void recurrent_back(const Back &a) {
    const i32 GATES = gates_of<CELL>();
    SHARED(BackRoom<T>, room);
    i64 hidden = a.hidden, next = rows_of(a.first_rows, a.step + 1, a.steps);
    i64 rows = a.step < 0 ? a.batch : rows_of(a.first_rows, a.step, a.steps);
    i64 tiles = (hidden + TILE_UNITS - 1) / TILE_UNITS;
    i64 unit_first = blockIdx.x % tiles * TILE_UNITS, row_first = blockIdx.x / tiles * TILE_ROWS;
    if (row_first >= rows) return;
    bool flows = row_first < next;
    if (flows) flowing_back<T, gates_of<CELL>()>(a, room, row_first, next, unit_first);
    UNROLL_BY(1) for (i32 own = (i32)threadIdx.x; own < TILE_ROWS * TILE_UNITS; own += THREADS) {
        i64 sequence = row_first + own / TILE_UNITS, unit = unit_first + own % TILE_UNITS;
        if (sequence >= rows || unit >= hidden) continue;
        i64 kept = sequence * hidden + unit;
        T dh = T(0), dc = T(0);
        if (sequence < next) {
            UNROLL for (i32 w = 0; w < THREADS / WARP; w++) dh += room.sums[w][own / TILE_UNITS][own % TILE_UNITS];
            if (CELL == GRU) dh += ((const T *)a.past)[kept];
            if (CELL == LSTM) dc = ((const T *)a.dc)[kept];
        } else {
            if (a.dfinals[0]) dh = From<T>{a.dfinals[0], a.narrow, 0}[kept];
            if (CELL == LSTM && a.dfinals[1]) dc = From<T>{a.dfinals[1], a.narrow, 0}[kept];
        }
        if (a.step < 0) {
            Into<T>{a.dfirst[0], a.narrow, 0}.put(kept, dh);
            if (CELL == LSTM) Into<T>{a.dfirst[1], a.narrow, 0}.put(kept, dc);
            continue;
        }
        i64 row = a.first_rows[a.step] + sequence, at = row * hidden + unit;
        i64 before = a.step == 0 ? -1 : a.first_rows[a.step - 1] + sequence;
        if (a.dy) dh += From<T>{a.dy, a.narrow, 0}[at];
        T d[GATES_MAX], back[GATES_MAX];
        cell_back<T, CELL>(a, row, before, sequence, unit, dh, dc, d, back);
        UNROLL for (i32 g = 0; g < GATES; g++) {
            ((T *)a.back[g])[at] = back[g];
            if (a.products[g]) Into<T>{a.products[g], a.narrow, 0}.put(at, d[g]);
        }
    }
}
OF_REALS(STEP_OF, recurrent_back, Back)

// h before each row's step, not narrow.
struct Before {
    i64 steps;
    i64 hidden;
    i64 narrow;
    const i64 *first_rows;
    const void *first;
    const void *y;
    void *before;
};

template <class T> DEVICE void rows_before(const Before &a) {
    i64 count = a.first_rows[a.steps] * a.hidden;
    From<T> first = {a.first, a.narrow, 0}, y = {a.y, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        i64 row = i / a.hidden, unit = i % a.hidden;
        // the last step that begins at this row or before
        i64 step = 0, end = a.steps;
        UNROLL_BY(1) while (end - step > 1) {
            i64 middle = (step + end) / 2;
            if (a.first_rows[middle] <= row) {
                step = middle;
            } else {
                end = middle;
            }
        }
        i64 sequence = row - a.first_rows[step];
        T h = step == 0 ? first[sequence * a.hidden + unit]
                        : y[(a.first_rows[step - 1] + sequence) * a.hidden + unit];
        ((T *)a.before)[i] = h;
    }
}
OF_REALS(KERNEL_OF, rows_before, Before)
