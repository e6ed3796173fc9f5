#pragma once
// Settings that the search of galley-plan tries, and why those that failed did.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libcore/dist/job.h"
#include "libcore/recipe/sections.h"

namespace galley {

/// One set of settings.
struct PlanCandidate {
  ShardingStrategy strategy = ShardingStrategy::kNone;
  std::optional<MeshSection> mesh;  ///< Empty: by the strategy.
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t micro = 1;
  std::string recompute = "null";  ///< null, selective, full.
  std::string offload = "null";    ///< null, optimizer, all.
  int64_t wrap_millions = 0;       ///< Millions of parameters of a unit; 0: units do not matter.
  bool reshard = true;
  double bound = 0;  ///< Seconds that a step takes at least.

  /// Keys of the recipe and their values. `place` is where states are offloaded to: host or disk.
  std::vector<std::pair<std::string, std::string>> settings(const std::string& place) const;
  /// Changes the recipe as the settings say.
  void apply(Recipe& recipe, const std::string& place) const;
};

/// All candidates of a recipe on so many ranks: strategies, meshes with tensor degrees inside a node and pipelines, micro-batches,
/// recomputation, sizes of units, offload. A mesh or a recipe's strategy other than auto that needs one (tensor, pipeline) is kept if the
/// recipe gives it.
std::vector<PlanCandidate> plan_candidates(const Recipe& recipe, int64_t ranks, const Cluster& cluster);

/// The settings as a fragment for --with. Keys of `sharding` that the search decides are all in it, so that it replaces those of a recipe.
std::string plan_fragment(const std::vector<std::pair<std::string, std::string>>& settings);

/// Candidates that failed for one reason.
struct PlanRejection {
  std::string reason;
  int64_t candidates = 0;
  double least_bytes = 0;                                     ///< Of those that do not fit: the smallest peak of a rank; else 0.
  std::vector<std::pair<std::string, std::string>> settings;  ///< Of that candidate, or of the first one.
};

/// Collects reasons.
class PlanRejections {
 public:
  void too_large(const PlanCandidate& candidate, double bytes, const std::string& what, const std::string& place);
  void too_large_for_host(const PlanCandidate& candidate, double bytes, const std::string& place);
  /// `reason`: of an error, e.g. that sizes do not divide. Numbers in it do not make it another reason.
  void refused(const PlanCandidate& candidate, const std::string& reason, const std::string& place);
  void slower(int64_t count);
  /// Most candidates first.
  std::vector<PlanRejection> list() const;

 private:
  void keep_least(const std::string& key, const PlanCandidate& candidate, double bytes, const std::string& reason,
                  const std::string& place);

  std::map<std::string, PlanRejection> by_reason_;
};

}  // namespace galley
