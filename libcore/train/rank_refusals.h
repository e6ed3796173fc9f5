#pragma once
// What cannot be trained on several ranks: one error with key and cure, before anything is compiled.

namespace galley {

class Communicator;
struct BatchPlan;
struct Recipe;

/// The ranks of a job.
struct JobRanks {
  int ranks = 1;
  int per_machine = 1;   ///< 0: machines have different numbers of ranks.
  bool threads = false;  ///< Of one process.
};

/// Throws Error (kRecipe) if the recipe cannot be trained on these ranks.
void check_ranks(const Recipe& recipe, const JobRanks& job);
void check_ranks(const Recipe& recipe, const Communicator& ranks);
/// Throws Error (kRecipe) if sharding.offload asks for what training does not have; says where it changes nothing.
void check_offload(const Recipe& recipe, const BatchPlan& batch);

}  // namespace galley
