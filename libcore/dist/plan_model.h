#pragma once
// PlanModel: a model as the simulator sees it: units of parameters, and the segments of one rank's forward and backward pass with their
// work and memory. Made from a captured graph (train/planned_model.h) or from the sizes of a transformer (transformer.h).

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/dist/cluster.h"
#include "libcore/dist/formulas.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// One operator, or several with the same limits.
struct Operation {
  double flops = 0;     ///< Two per multiply-add, as reports count them.
  double executed = 0;  ///< That the kernel executes: less for causal attention and Winograd convolutions.
  double bytes = 0;     ///< Read and written.
  double extent = 0;    ///< Smallest extent of a product; 0: not a product.
  DType dtype = DType::kF32;
  int64_t kernels = 1;
  double seconds = -1;  ///< Measured; negative: by the rates of the cluster.
  int table = -1;       ///< The embedding table that it reads or writes, an index of PlanModel::tables; -1: none.
};
double seconds_of(const Operation& operation, const Cluster& cluster);
double seconds_of(const std::vector<Operation>& operations, const Cluster& cluster);

/// A trained or frozen parameter.
struct PlanParameter {
  std::string name;
  int64_t elements = 0;
  int unit = 0;
  bool trained = true;
  int forward_segment = -1;  ///< The first forward segment that uses it; -1: those of its unit.
  std::vector<int> read_by;  ///< Forward segments.
  int final_segment = -1;    ///< The backward segment after which its gradient is final; -1: the last one of its unit.
  bool divisible = false;    ///< Tensor parallelism divides it: a matrix of an attention block, an embedding or the head.
  int64_t rows = 0;          ///< First extent of a matrix (all others together are the second one); 0: a vector.
  int64_t group = 0;         ///< Of the optimizer: buckets have parameters of one group.
  int64_t order = -1;        ///< Place of its gradient among all in the order in which they become final; -1: reverse order of parameters.
};

/// A parameter that is only read by lookups of rows.
struct PlanTable {
  size_t parameter = 0;  ///< Index of PlanModel::parameters.
  std::string module;
  int64_t rows = 0, width = 0;
  double reads = 0;  ///< Rows that a micro-batch reads.
};

/// Parameters that are gathered and freed together.
struct Unit {
  std::string name;
  /// Elements of its parts that are gathered one after the other, where they are wrapped on their own although the timeline draws them as
  /// one; empty: one part.
  std::vector<int64_t> parts;
};

/// Collectives of one kind.
struct TensorCollectives {
  int count = 0;
  double bytes = 0;  ///< Of all of them, of whole arrays.
};

/// Consecutive operators that use the parameters of one unit.
struct PlanSegment {
  std::string name;
  int unit = -1;  ///< -1: no parameters.
  std::vector<Operation> work;
  double live_bytes = 0;    ///< Forward and backward: largest sum of activations during the segment, without those of other micro-batches.
  double kept_bytes = 0;    ///< Forward: activations that the backward pass reads.
  double output_bytes = 0;  ///< Forward: what the next segment reads: the transfer at a boundary of stages.
  /// Tensor parallelism: bytes of one all-reduce of activations (their mean), and how many the segment needs.
  double reduced_bytes = 0;
  int reductions = 0;
  TensorCollectives gathers, scatters;
  int forward = -1;     ///< Backward: the forward segment that it belongs to.
  int first_node = -1;  ///< Of the graph that it is made of; -1: no graph.
};

/// A model with one micro-batch of a rank.
struct PlanModel {
  std::string name;
  std::vector<Unit> units;
  std::vector<PlanParameter> parameters;
  std::vector<PlanSegment> forward, backward;  ///< In order of execution.
  std::vector<Operation> update;               ///< Of all parameters; ranks that divide the optimizer state execute a part.
  std::vector<PlanTable> tables;
  StateBytes bytes;
  int64_t gather_bytes = 4;  ///< Per element, of gathered parameters.
  int64_t reduce_bytes = 4;  ///< Per element, of summed gradients.
  double samples = 1;        ///< In a micro-batch.
  double tokens = 0;
  double flops = 0;           ///< Of a micro-batch, recomputation counted.
  double model_flops = 0;     ///< The same without recomputation.
  double input_bytes = 0;     ///< Fed data.
  double copy_bytes = 0;      ///< Parameters in the dtype of computations and in other formats, where those are copies.
  double exact_bytes = 0;     ///< Peak of one rank without sharding, if it is known from a compiled program; 0: not known.
  double other_bytes = 0;     ///< Buffers and other arrays that every rank holds whole.
  DType dtype = DType::kF32;  ///< Of products.

  int64_t elements(int unit) const;
  int64_t trained_elements() const;
  int64_t frozen_elements() const;
  /// Whether each unit stays gathered during the forward pass because segments of other units lie between those that use it.
  std::vector<bool> staying_units() const;
  /// Elements of the largest part of a unit, which is gathered at once.
  int64_t largest_part(int unit) const;
};

/// The model without some of its embedding tables, which ranks divide in another way: their parameters have no elements, and nothing reads
/// or updates them. `removed`: one entry for each table.
PlanModel without_tables(PlanModel model, const std::vector<bool>& removed);

}  // namespace galley
