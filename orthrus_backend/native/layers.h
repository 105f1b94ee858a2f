// The element-wise parts of a layer: normalisation, rotary position embedding, gating; and the largest of many.
#pragma once

#include "vectors.h"

namespace {

constexpr int64_t GRAIN = 1 << 15;  // numbers below which a second thread costs more than it brings

// x * weight / rms(x), over `dim` numbers at `x`, to `out`.
template <class T>
inline void normalise(T* out, const T* x, const T* weight, int64_t dim, float epsilon) {
  vf squares{};
  int64_t d = 0;
  for (; d + W <= dim; d += W) squares += load(x + d) * load(x + d);
  float total = sum(squares);
  for (; d < dim; ++d) total += one(x + d) * one(x + d);
  const float scale = 1 / std::sqrt(total / dim + epsilon);
  for (d = 0; d + W <= dim; d += W) store(out + d, load(x + d) * scale * load(weight + d));
  for (; d < dim; ++d) put(out + d, one(x + d) * scale * one(weight + d));
}

template <class T>
void add_and_normalise(T* out, T* residual, const T* x, const T* weight, int64_t rows, int64_t dim, float epsilon,
                       int threads) {
#pragma omp parallel for num_threads(threads) if (rows * dim > GRAIN)
  for (int64_t row = 0; row < rows; ++row) {
    T* sums = residual + row * dim;
    if (x) {
      const T* added = x + row * dim;
      int64_t d = 0;
      for (; d + W <= dim; d += W) store(sums + d, load(sums + d) + load(added + d));
      for (; d < dim; ++d) put(sums + d, one(sums + d) + one(added + d));
    }
    normalise(out + row * dim, sums, weight, dim, epsilon);
  }
}

template <class T>
void gate(T* out, const T* gate_up, int64_t rows, int64_t dim, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * dim > GRAIN)
  for (int64_t row = 0; row < rows; ++row) {
    const T *g = gate_up + row * 2 * dim, *u = g + dim;
    T* o = out + row * dim;
    int64_t d = 0;
    for (; d + W <= dim; d += W) store(o + d, silu(load(g + d)) * load(u + d));
    for (; d < dim; ++d) put(o + d, one(g + d) / (1 + std::exp(-one(g + d))) * one(u + d));
  }
}

// Turns pairs (d, d + half) of one head by the row's angles. `cosine`, `sine`: [half].
template <class T>
inline void turn(T* x, const float* cosine, const float* sine, int half) {
  int d = 0;
  for (; d + W <= half; d += W) {
    const vf a = load(x + d), b = load(x + half + d), c = load(cosine + d), s = load(sine + d);
    store(x + d, a * c - b * s);
    store(x + half + d, b * c + a * s);
  }
  for (; d < half; ++d) {
    const float a = one(x + d), b = one(x + half + d);
    put(x + d, a * cosine[d] - b * sine[d]);
    put(x + half + d, b * cosine[d] + a * sine[d]);
  }
}

template <class T>
void rotate(T* qkv, int64_t rows, int heads, int kv_heads, int dim, const float* cosine, const float* sine,
            const T* query_weight, const T* key_weight, float epsilon, int threads) {
  const int64_t width = int64_t(heads + 2 * kv_heads) * dim;
#pragma omp parallel for num_threads(threads) if (rows * width > GRAIN)
  for (int64_t row = 0; row < rows; ++row) {
    T* x = qkv + row * width;
    for (int head = 0; head < heads + kv_heads; ++head, x += dim) {
      const T* weight = head < heads ? query_weight : key_weight;
      if (weight) normalise(x, x, weight, dim, epsilon);
      turn(x, cosine + row * (dim / 2), sine + row * (dim / 2), dim / 2);
    }
  }
}

// Copies rows of keys and values, `width` numbers each, to their slots; a slot below 0 is none.
template <class T>
void keep(const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* key_cache, T* value_cache,
          const int64_t* slots, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    if (slots[row] < 0) continue;
    std::memcpy(key_cache + slots[row] * width, key + row * key_stride, width * sizeof(T));
    std::memcpy(value_cache + slots[row] * width, value + row * value_stride, width * sizeof(T));
  }
}

// The largest of each row, of equals the first; NaN counts as -inf, and where nothing is above that, the first.
template <class T>
void largest(int64_t* out, const T* x, int64_t rows, int64_t columns, int64_t stride, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
  for (int64_t row = 0; row < rows; ++row) {
    const T* scores = x + row * stride;
    vf top = splat(-INFINITY);
    int64_t i = 0;
    for (; i + W <= columns; i += W) {
      const vf s = load(scores + i);
      const vi above = s > top;
      top = (vf)(((vi)s & above) | ((vi)top & ~above));
    }
    float best = -INFINITY;
    for (int lane = 0; lane < W; ++lane) best = std::max(best, top[lane]);
    for (int64_t j = i; j < columns; ++j) best = one(scores + j) > best ? one(scores + j) : best;
    int64_t first = 0;
    if (best > -INFINITY)
      while (one(scores + first) != best) ++first;
    out[row] = first;
  }
}

}  // namespace
