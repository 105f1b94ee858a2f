// The hot loops of a step on CPU, as plain C functions over raw memory, so that Python needs no build system to reach them;
// every size and type is checked by the caller (`ops.py`). Each output row is computed from its own inputs, in an order
// that depends on positions only: never on its neighbours in the batch.

#include "attend.h"
#include "decoder.h"
#include "layers.h"
#include "products.h"
#include "projection.h"

#define FOR_TYPE(NAME, T)                                                                                              \
  int orthrus_attend_##NAME(T* out, const T* query, int64_t query_stride, const T* key, int64_t key_stride,            \
                            const T* value, int64_t value_stride, const T* key_cache, const T* value_cache,            \
                            const int64_t* items, int64_t count, const int32_t* blocks, int block_size, int heads,     \
                            int kv_heads, int dim, int window, float scale, float softcap, int tiles, int threads) {   \
    return attend(out, query, query_stride, key, key_stride, value, value_stride, key_cache, value_cache, items,       \
                  count, blocks, block_size, heads, kv_heads, dim, window, scale, softcap, tiles, threads);            \
  }                                                                                                                    \
  void orthrus_normalise_##NAME(T* out, T* residual, const T* x, const T* weight, int64_t rows, int64_t dim,           \
                                float epsilon, int threads) {                                                          \
    add_and_normalise(out, residual, x, weight, rows, dim, epsilon, threads);                                          \
  }                                                                                                                    \
  void orthrus_gate_##NAME(T* out, const T* gate_up, int64_t rows, int64_t dim, int threads) {                         \
    gate(out, gate_up, rows, dim, threads);                                                                            \
  }                                                                                                                    \
  void orthrus_rotate_##NAME(T* qkv, int64_t rows, int heads, int kv_heads, int dim, const float* cosine,              \
                             const float* sine, const T* query_weight, const T* key_weight, float epsilon,             \
                             int threads) {                                                                            \
    rotate(qkv, rows, heads, kv_heads, dim, cosine, sine, query_weight, key_weight, epsilon, threads);                 \
  }                                                                                                                    \
  void orthrus_keep_##NAME(const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* key_cache,       \
                           T* value_cache, const int64_t* slots, int64_t rows, int64_t width) {                        \
    keep(key, key_stride, value, value_stride, key_cache, value_cache, slots, rows, width);                            \
  }                                                                                                                    \
  void orthrus_largest_##NAME(int64_t* out, const T* x, int64_t rows, int64_t columns, int64_t stride, int threads) {  \
    largest(out, x, rows, columns, stride, threads);                                                                   \
  }

extern "C" {
FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, bf16)

int orthrus_tiles() { return tiles_allowed(); }

#if HAS_TILES
void orthrus_decode(const Step* step, bf16* hidden, bf16* out) { decode(*step, hidden, out); }
void orthrus_multiply(bf16* out, const bf16* x, int64_t stride, int64_t rows, const Weights* weights, int threads) {
  multiply(out, x, stride, rows, *weights, threads);
}
void orthrus_multiply_gated(bf16* out, const bf16* x, int64_t stride, int64_t rows, const Weights* weights, int threads) {
  multiply_gated(out, x, stride, rows, *weights, threads);
}
void orthrus_project(bf16* out, const bf16* x, const bf16* weight, int64_t rows, int64_t depth, int64_t columns,
                     int threads) {
  Projection(out, x, weight, rows, depth, columns).run(threads);
}
#endif
}
