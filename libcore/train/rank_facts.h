#pragma once
// Whether all ranks train the same: the program, the recipe, the data, the folder RUN.

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace galley {

class Communicator;
class Source;

/// What all ranks must have in common from their start.
struct RankFacts {
  std::string build;
  std::string recipe_text;                                    ///< Full dump.
  std::vector<std::pair<std::string, std::string>> settings;  ///< Of the command line, and what they mean here: "-o" and a path.
};
/// Their data, by key: "data.train".
using RankData = std::vector<std::pair<std::string, std::shared_ptr<const Source>>>;

/// Throws Error (kRecipe; kWorker for builds and settings) on every rank if the facts of a rank differ from those of rank 0: with the first
/// difference, its values and both ranks.
void check_equal_facts(Communicator& ranks, const RankFacts& own);
/// The same for data. They are equal if they have the same names and classes of samples; the error names the first sample that differs.
void check_equal_data(Communicator& ranks, const RankData& own);

}  // namespace galley
