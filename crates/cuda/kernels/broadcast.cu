// Elements of operands whose dimensions differ, and what moves without being computed.
#include "device.cuh"

// The dimensions of a large tensor, outermost first, and how far apart their elements lie in each of two operands.
struct Sides {
    i64 count;
    i64 size[8];
    i64 first_step[8];
    i64 second_step[8];
};

struct Places {
    i64 first;
    i64 second;
};

// Where element i of the large tensor lies in the operands.
DEVICE Places places(const Sides &sides, i64 i) {
    Places at = {0, 0};
    UNROLL_BY(1) for (i64 side = sides.count - 1; side >= 0; side--) {
        i64 size = sides.size[side], rest = side == 0 ? i : i % size;
        at.first += rest * sides.first_step[side];
        at.second += rest * sides.second_step[side];
        i /= size;
    }
    return at;
}

// crates/cuda/src/lower/elements.rs has the same lists.
enum Of { ADD = 0, SUB, MUL, DIV, MOST, LEAST };
enum Asked { EQUAL = 0, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL };

struct Binary {
    i64 by;
    i64 count;
    // of numbers that are computed
    i64 narrow;
    const void *a;
    const void *b;
    void *y;
    Sides sides;
};

template <class T> DEVICE void binary(const Binary &args) {
    From<T> left = {args.a, args.narrow, 0}, right = {args.b, args.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < args.count; i += threads_of_grid()) {
        Places at = places(args.sides, i);
        T a = left[at.first], b = right[at.second], y;
        switch (args.by) {
        case ADD:
            y = a + b;
            break;
        case SUB:
            y = a - b;
            break;
        case MUL:
            y = a * b;
            break;
        case DIV:
            y = a / b;
            break;
        case MOST:
            y = a >= b || is_nan(a) ? a : b;
            break;
        default:
            y = a <= b || is_nan(a) ? a : b;
        }
        Into<T>{args.y, args.narrow, 0}.put(i, y);
    }
}
OF_REALS(KERNEL_OF, binary, Binary)

DEVICE i32 load(i32 x) { return x; }
DEVICE i64 load(i64 x) { return x; }
DEVICE u8 load(u8 x) { return x; }

template <class S> DEVICE void compare(const Binary &args) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < args.count; i += threads_of_grid()) {
        Places at = places(args.sides, i);
        auto a = load(((const S *)args.a)[at.first]);
        auto b = load(((const S *)args.b)[at.second]);
        bool holds;
        switch (args.by) {
        case EQUAL:
            holds = a == b;
            break;
        case NOT_EQUAL:
            holds = a != b;
            break;
        case LESS:
            holds = a < b;
            break;
        case LESS_EQUAL:
            holds = a <= b;
            break;
        case GREATER:
            holds = a > b;
            break;
        default:
            holds = a >= b;
        }
        ((u8 *)args.y)[i] = holds ? 1 : 0;
    }
}
OF_FLOATS(KERNEL_OF, compare, Binary)
KERNEL_OF(compare, i32, Binary, i32)
KERNEL_OF(compare, i64, Binary, i64)
KERNEL_OF(compare, u8, Binary, u8)

struct Expand {
    i64 count;
    const void *x;
    void *y;
    Sides sides;
};

template <class W> DEVICE void expand(const Expand &a) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid())
        ((W *)a.y)[i] = ((const W *)a.x)[places(a.sides, i).first];
}
OF_WIDTHS(KERNEL_OF, expand, Expand)
