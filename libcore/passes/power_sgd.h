#pragma once
// PowerSGD (Vogels et al. 2019): ranks sum two factors of low rank instead of a matrix of gradients.
//
// For a matrix M of a rank, its gradient and what earlier steps left out (error feedback), and a matrix Q [columns, rank] that all ranks
// have: P = the sum of M Q, with orthonormal columns; Q' = the sum of M^T P. P Q'^T takes the place of the sum of all M; what it leaves
// out, M - P Q'^T / N, is kept for the next step. With a warm start, Q' is the next Q; otherwise each step draws a new Q. Each training
// step is one step of a power iteration.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// The options of the hook.
struct PowerSgd {
  int64_t rank = 1;
  bool warm_start = true, error_feedback = true;
  int64_t seed = 0;
  int64_t ranks = 1;  ///< That sum.
};

/// What a communication hook keeps between steps.
struct HookState {
  std::string name;  ///< "fc1.weight.power_sgd_q"
  TensorType type;
  std::string of;    ///< Its parameter.
  bool own = false;  ///< Each rank has values of its own, zero at first; else they are equal, and normal random numbers at first.
};
inline constexpr std::string_view kPowerSgdFactor = ".power_sgd_q", kPowerSgdError = ".power_sgd_error";
/// Whether a tensor of a checkpoint is such a state.
bool is_hook_state(std::string_view name);

/// Rows and columns of a gradient as a matrix, and the rank of its factors.
struct FactorSizes {
  int64_t rows = 0, columns = 0, rank = 0;
};
/// nullopt: factors would not be smaller, or the gradient is not an f32 matrix.
std::optional<FactorSizes> factor_sizes(const TensorType& gradient, int64_t rank);

/// The factors of one bucket of gradients, in a graph.
class PowerSgdBucket {
 public:
  /// Adds the first product and the start of its sum, after node `after`: the last gradient. `name`: of the collectives. `parameters`: as
  /// `gradients`. `place`: of the first one among all that are compressed.
  PowerSgdBucket(Graph& graph, const PowerSgd& options, std::string name, const std::vector<std::string>& parameters,
                 const std::vector<Value>& gradients, int after, int64_t place);
  /// Waits for the first sum and starts that of the second product.
  void start_second();
  /// Waits for it. Returns the sums of the gradients, and updates the states.
  std::vector<Value> finish();
  const std::vector<HookState>& states() const { return states_; }

 private:
  struct Member {
    FactorSizes sizes;
    Shape shape;
    Value error, q;   // states; absent: none
    Value matrix, p;  // what is compressed, the first factor
    int64_t p_at = 0, q_at = 0;
  };
  Value random_factor(const FactorSizes& sizes, int64_t place) const;

  Graph& graph_;
  PowerSgd options_;
  std::string first_name_, second_name_;
  std::vector<Member> members_;
  std::vector<HookState> states_;
  int64_t p_elements_ = 0, q_elements_ = 0;
  Value started_;
};

}  // namespace galley
