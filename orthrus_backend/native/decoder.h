// All layers of a Llama-like decoder in one call, where every product is on matrix tiles: between two loops there is
// nothing but the next, and Python's other threads have the interpreter all the while.
#pragma once

#include <memory>

#include "adapted.h"
#include "attend.h"
#include "layers.h"
#include "products.h"

#if HAS_TILES
namespace {

// The layout of these structures is that of `fused/at_once.py`.
struct Layer {
  const bf16 *before_attention, *query_norm, *key_norm, *before_mlp;
  Weights qkv, output, gate_up, down;
  bf16 *key_cache, *value_cache;
  int64_t window;
  float scale, softcap;
};

struct Step {
  const Layer* layers;
  int64_t count;
  const AdapterOfStep* adapters;
  int64_t adapter_count;
  const bf16* last_norm;
  const float *cosine, *sine;  // [rows, dim / 2]
  const int64_t *slots, *items;
  int64_t item_count;
  const int32_t* blocks;
  int64_t block_size, rows, width, heads, kv_heads, dim;
  float epsilon;
  int threads;
};

inline std::unique_ptr<bf16[]> unset(int64_t numbers) { return std::unique_ptr<bf16[]>(new bf16[numbers]); }

// `hidden`: [rows, width], what layers add to; `out`: [rows, width], after the last norm.
inline void decode(const Step& s, bf16* hidden, bf16* out) {
  const int64_t rows = s.rows, of_query = s.heads * s.dim, of_keys = s.kv_heads * s.dim, of_all = of_query + 2 * of_keys;
  const auto added = unset(rows * s.width), qkv = unset(rows * of_all), seen = unset(rows * of_query);
  const auto gated = unset(rows * s.layers[0].down.depth);
  Adapted adapted(s.adapters, s.adapter_count, rows, s.threads);
  for (const Layer* layer = s.layers; layer < s.layers + s.count; ++layer) {
    const bf16* before = layer == s.layers ? nullptr : added.get();
    add_and_normalise(out, hidden, before, layer->before_attention, rows, s.width, s.epsilon, s.threads);
    const int64_t number = 4 * (layer - s.layers);
    multiply(qkv.get(), out, s.width, rows, layer->qkv, s.threads, adapted.additions(number, out, s.width));
    rotate(qkv.get(), rows, int(s.heads), int(s.kv_heads), int(s.dim), s.cosine, s.sine, layer->query_norm,
           layer->key_norm, s.epsilon, s.threads);
    const bf16 *key = qkv.get() + of_query, *value = key + of_keys;
    keep(key, of_all, value, of_all, layer->key_cache, layer->value_cache, s.slots, rows, of_keys);
    attend<bf16>(seen.get(), qkv.get(), of_all, key, of_all, value, of_all, layer->key_cache, layer->value_cache, s.items,
                 s.item_count, s.blocks, int(s.block_size), int(s.heads), int(s.kv_heads), int(s.dim), int(layer->window),
                 layer->scale, layer->softcap, true, s.threads);
    multiply(added.get(), seen.get(), of_query, rows, layer->output, s.threads,
             adapted.additions(number + 1, seen.get(), of_query));
    add_and_normalise(out, hidden, added.get(), layer->before_mlp, rows, s.width, s.epsilon, s.threads);
    multiply_gated(gated.get(), out, s.width, rows, layer->gate_up, s.threads,
                   adapted.additions(number + 2, out, s.width));
    multiply(added.get(), gated.get(), layer->down.depth, rows, layer->down, s.threads,
             adapted.additions(number + 3, gated.get(), layer->down.depth));
  }
  add_and_normalise(out, hidden, added.get(), s.last_norm, rows, s.width, s.epsilon, s.threads);
}

}  // namespace
#endif
