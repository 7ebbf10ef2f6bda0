/* Open MPI's side of the all-reduce benchmark: MPI_Allreduce of floats, in place, of every process that
 * mpirun started. Knows nothing of tensorwire.
 *
 *     mpirun -np RANKS openmpi_allreduce BYTES REPETITIONS
 *
 * A repetition fills the vector with values of this step and process, waits at a barrier, is timed, and
 * compares the whole vector with the sum in closed form. Its time is that of the process that was slowest.
 * Process 0 prints one line of JSON. Exit status: 0 measured; 2 arguments; 1 wrong data, or MPI's own.
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef OMPI_MAJOR_VERSION
#error "this measures Open MPI: compile it with its mpicc"
#endif

/* Element i of what process r adds is (r + 1) * (i mod PERIOD + 1), in every other step 3 times that: the
 * sums of 64 processes are exact in a float. */
enum { PERIOD = 251, TILE = 16 * PERIOD, MOST = 1000000 };

/* Unmeasured repetitions, as many as tensorwire makes of a vector of so many bytes: processes that have just
 * started may share a core for some 40 ms. */
enum { WARM_UP_LEAST = 3, WARM_UP_MOST = 2000, WARM_UP_BYTES = 64 << 20 };

static size_t warm_up(size_t bytes) {
  size_t times = WARM_UP_BYTES / bytes;
  if (times < WARM_UP_LEAST) return WARM_UP_LEAST;
  return times > WARM_UP_MOST ? WARM_UP_MOST : times;
}

static float tile[TILE];

static void make_tile(size_t count, float scale) {
  for (size_t i = 0; i < TILE && i < count; i++) tile[i] = (float)(i % PERIOD + 1) * scale;
}

static void fill(float *vector, size_t count, float scale) {
  make_tile(count, scale);
  for (size_t at = 0; at < count; at += TILE) {
    size_t here = count - at < TILE ? count - at : TILE;
    memcpy(vector + at, tile, here * sizeof(float));
  }
}

static int is_filled(const float *vector, size_t count, float scale) {
  make_tile(count, scale);
  for (size_t at = 0; at < count; at += TILE) {
    size_t here = count - at < TILE ? count - at : TILE;
    if (memcmp(vector + at, tile, here * sizeof(float)) != 0) return 0;
  }
  return 1;
}

static int ascending(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* The smallest that at least so many of 10 do not exceed. */
static double tenths(const double *sorted, size_t count, size_t of_ten) {
  return sorted[(count * of_ten + 9) / 10 - 1];
}

static void print_row(double *seconds, size_t count, size_t bytes, int ranks) {
  qsort(seconds, count, sizeof(double), ascending);
  double median = (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
  printf("{\"bench\": \"allreduce\", \"system\": \"openmpi\", \"version\": \"%d.%d.%d\", \"ranks\": %d, "
         "\"bytes\": %zu, \"repetitions\": %zu, \"median_s\": %.9g, \"p10_s\": %.9g, \"p90_s\": %.9g, "
         "\"verified\": true}\n",
         OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION, ranks, bytes, count, median,
         tenths(seconds, count, 1), tenths(seconds, count, 9));
}

static size_t number(const char *text, size_t most) {
  char *end;
  unsigned long long found = strtoull(text, &end, 10);
  return *end == '\0' && found <= most ? (size_t)found : 0;
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  size_t bytes = argc == 3 ? number(argv[1], (size_t)1 << 32) : 0;
  size_t repetitions = argc == 3 ? number(argv[2], MOST) : 0;
  if (bytes == 0 || bytes % sizeof(float) != 0 || repetitions == 0) {
    if (rank == 0) fprintf(stderr, "usage: %s BYTES REPETITIONS; bytes are a multiple of 4\n", argv[0]);
    MPI_Finalize();
    return 2;
  }
  size_t count = bytes / sizeof(float);
  float *vector = malloc(bytes);
  double *seconds = malloc(repetitions * sizeof(double));
  if (vector == NULL || seconds == NULL) {
    fprintf(stderr, "process %d has no memory for %zu bytes\n", rank, bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  size_t before = warm_up(count * sizeof(float));
  for (size_t step = 0; step < before + repetitions; step++) {
    float factor = step % 2 == 0 ? 1 : 3;
    fill(vector, count, factor * (float)(rank + 1));
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, vector, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - start;
    if (step >= before) seconds[step - before] = took;
    if (!is_filled(vector, count, factor * (float)(ranks * (ranks + 1) / 2))) {
      fprintf(stderr, "process %d, step %zu: the sum is wrong\n", rank, step);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  const void *mine = rank == 0 ? MPI_IN_PLACE : seconds;
  MPI_Reduce(mine, seconds, (int)repetitions, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) print_row(seconds, repetitions, bytes, ranks);
  free(vector);
  free(seconds);
  MPI_Finalize();
  return 0;
}
