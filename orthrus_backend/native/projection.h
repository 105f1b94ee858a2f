// Scores of a vocabulary: few rows times a large matrix that stays as its model has it, on matrix tiles. The weights take
// the place of rows there, and the rows that of weights, so that nothing but the rows has to be laid out anew.
#pragma once

#include "products.h"

#if HAS_TILES
namespace {

// out[row, column] = sum of x[row] * weight[column]. `x`: [tiles][depth / 2][16][2], the last two being rows and
// neighbours in depth; `weight`: [columns, depth].
class Projection {
 public:
  Projection(bf16* out, const bf16* x, const bf16* weight, int64_t rows, int64_t depth, int64_t columns)
      : out(out), x(x), weight(weight), rows(rows), steps(depth / DEPTH), columns(columns) {}

  void run(int threads) const {
    const int64_t panels = columns / SIDE;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; ++part) {
      const Tiles shapes(SIDE);
      for (int64_t panel = panels * part / threads; panel < panels * (part + 1) / threads; ++panel) run(panel * SIDE);
    }
  }

 private:
  // All rows' sums with 16 columns, four tiles of rows together.
  void run(int64_t column) const {
    const int64_t tiles = (rows + SIDE - 1) / SIDE;
    for (int64_t tile = 0; tile < tiles; tile += 4) switch (tiles - tile) {
        case 1: multiply<1>(column, tile); break;
        case 2: multiply<2>(column, tile); break;
        case 3: multiply<3>(column, tile); break;
        default: multiply<4>(column, tile);
      }
  }

  template <int N>
  void multiply(int64_t column, int64_t tile) const {
    const int64_t apart = steps * SIDE * DEPTH;  // from one tile of rows to the next
    const bf16 *w = weight + column * steps * DEPTH, *b = x + tile * apart;
    _tile_zero(0);
    if (N > 1) _tile_zero(1);
    if (N > 2) _tile_zero(2);
    if (N > 3) _tile_zero(3);
    for (int64_t step = 0; step < steps; ++step, b += SIDE * DEPTH) {
      if (tile == 0)  // the 16 columns' weights are one stretch of memory, fetched in its own order
        for (int64_t line = step * SIDE; line < (step + 1) * SIDE; ++line)
          _mm_prefetch(reinterpret_cast<const char*>(w) + 2 * AHEAD + line * 64, _MM_HINT_T1);
      _tile_loadd(4, w + step * DEPTH, steps * DEPTH * sizeof(bf16));
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (N > 1) _tile_loadd(7, b + apart, 64);
      if (N > 1) _tile_dpbf16ps(1, 4, 7);
      if (N > 2) _tile_loadd(6, b + 2 * apart, 64);
      if (N > 2) _tile_dpbf16ps(2, 4, 6);
      if (N > 3) _tile_loadd(7, b + 3 * apart, 64);
      if (N > 3) _tile_dpbf16ps(3, 4, 7);
    }
    alignas(64) float sums[4][SIDE][SIDE];  // [tile][column][row]
    _tile_stored(0, sums[0], 64);
    if (N > 1) _tile_stored(1, sums[1], 64);
    if (N > 2) _tile_stored(2, sums[2], 64);
    if (N > 3) _tile_stored(3, sums[3], 64);
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i places = _mm512_slli_epi32(lanes, 4);  // of a row's numbers in a tile
    for (int64_t row = tile * SIDE; row < std::min(rows, (tile + N) * SIDE); ++row) {
      const float* first = &sums[row / SIDE - tile][0][row % SIDE];
      store(out + row * columns + column, (vf)_mm512_i32gather_ps(places, first, sizeof(float)));
    }
  }

  bf16* out;  // [rows, columns]
  const bf16 *x, *weight;
  int64_t rows, steps, columns;
};

}  // namespace
#endif
