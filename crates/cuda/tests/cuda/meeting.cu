// Kernels whose threads meet as they should, and as they should not.
#include "device.cuh"

struct Meet {
    i64 *y;
    i64 how;
};

struct Row {
    i64 at[THREADS];
};

// Each thread gives its number to the next one of the block, by way of the block's memory, and to the next one of the warp.
BLOCK_KERNEL(pass_on, Meet) {
    SHARED(Row, row);
    i32 thread = (i32)threadIdx.x;
    UNROLL_BY(1) for (i64 round = 0; round < 3; round++) {
        __syncthreads();
        row.at[thread] = thread + round;
        __syncthreads();
        i64 next = row.at[(thread + 1) % THREADS];
        i64 beside = __shfl_sync(0xffffffffu, next, (lane() + 1) % WARP);
        u32 odd = __ballot_sync(0xffffffffu, beside % 2 != 0);
        a.y[blockIdx.x * THREADS + thread] = next + 1000 * beside + 1000000 * __popc(odd);
    }
}

BLOCK_KERNEL(part_ways, Meet) {
    SHARED(Row, row);
    i32 thread = (i32)threadIdx.x;
    row.at[thread] = thread;
    switch (a.how) {
    case 0:
        // a warp stays away
        if (thread >= WARP) __syncthreads();
        break;
    case 1:
        // two barriers that are not the same
        if (thread % 2 == 0) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        break;
    case 2:
        // half of a warp meets by itself
        if (lane() < WARP / 2) row.at[thread] = __shfl_xor_sync(0xffffffffu, row.at[thread], 1);
        break;
    case 3:
        // some of a warp wait for it, and others for the block
        if (lane() < WARP / 2) {
            row.at[thread] = __shfl_xor_sync(0xffffffffu, row.at[thread], 1);
        } else {
            __syncthreads();
        }
        break;
    default:
        __syncthreads();
    }
    a.y[blockIdx.x * THREADS + thread] = row.at[(thread + 1) % THREADS];
}

// What nobody wrote is no number.
BLOCK_KERNEL(read_first, Meet) {
    SHARED(Row, row);
    __syncthreads();
    a.y[blockIdx.x * THREADS + threadIdx.x] = row.at[threadIdx.x];
}
