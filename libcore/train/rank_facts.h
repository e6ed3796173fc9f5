#pragma once
// Whether all ranks train the same: the program, the recipe, the data, the folder RUN.

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace galley {

class Communicator;
class Source;

/// What all ranks must have in common.
struct RankFacts {
  std::string build;
  std::string recipe_text;                                                  // full dump
  std::vector<std::pair<std::string, std::shared_ptr<const Source>>> data;  // by key: "data.train"
  std::string run;
};

/// Throws Error (kRecipe; kWorker for different builds) on every rank if the facts of a rank differ from those of rank 0: with the first
/// difference, its values and both ranks. Data are equal if they have the same names and classes of samples; the error names the first
/// sample that differs.
void check_equal_facts(Communicator& ranks, const RankFacts& own);

}  // namespace galley
