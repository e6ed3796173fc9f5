#pragma once
// Tensor parallelism: which matrices of a model ranks divide, and how (Shoeybi et al. 2019).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// How ranks divide an array along one dimension. The dimension consists of blocks, such as the queries, keys and values of a packed
/// projection; each rank holds a range of every block. Ranges consist of whole units, such as the features of a head.
struct TensorDivision {
  struct Block {
    int64_t size = 0;
    int64_t unit = 1;  // divides size
    friend bool operator==(const Block&, const Block&) = default;
  };
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  int dim = 0;
  std::vector<Block> blocks;
  friend bool operator==(const TensorDivision&, const TensorDivision&) = default;

  /// The elements of the whole dimension.
  int64_t size() const;
  /// The rank's elements in the whole dimension, in order: one range for each block. The first ranks hold ceil(units / ranks) units each.
  std::vector<Range> ranges(int rank, int ranks) const;
  /// The number of elements of a rank.
  int64_t size(int rank, int ranks) const;
  /// The whole shape -> that of a rank.
  Shape shape(const Shape& whole, int rank, int ranks) const;
  /// Whether each rank holds at least one unit of each block.
  bool fits(int ranks) const;
};

/// The blocks of heads in each of the arrays that attention reads (ops/attention.h): queries, keys and values in 1, 2 or 3 arrays.
std::vector<std::vector<TensorDivision::Block>> blocks_of_heads(int arrays, TensorDivision::Block queries, TensorDivision::Block keys,
                                                                TensorDivision::Block values);

/// A rank's part of an array.
Tensor part_of(const Tensor& whole, const TensorDivision& division, int rank, int ranks);
/// Copies a rank's part to its place in the whole array.
void place_part(Tensor& whole, const Tensor& part, const TensorDivision& division, int rank, int ranks);

/// By the names of parameters; others are whole on every rank.
using TensorDivisions = std::map<std::string, TensorDivision>;

/// Divides the parameters of a captured graph:
/// - of attention, the projections of queries, keys and values by rows, so that a rank has whole heads (of grouped queries: with the heads
///   of keys that they read), and the layer that reads the result by columns;
/// - of two linear layers with element-wise functions between them (also SwiGLU), the first by rows and the second by columns;
/// - of an adapter (LoRA) over a layer that is divided by rows, the second layer by rows; by columns, the first one by columns;
/// - the table of tokens by rows, and the head that shares it or gives logits of as many tokens.
/// Throws Error (kRecipe) if the graph has no attention, or if the number of heads is not a multiple of the ranks. The caller adds the key.
TensorDivisions tensor_divisions(const Graph& graph, int ranks);

}  // namespace galley
