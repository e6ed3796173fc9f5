#include "libcore/recipe/lora.h"

#include "libcore/base/error.h"
#include "libcore/weights/adapter.h"

namespace galley {

LoraChoice lora_choice(const LoraSection& section) {
  LoraChoice choice{.match = section.match, .train = section.train};
  choice.rank = section.rank.value_or(choice.rank);
  choice.alpha = section.alpha.value_or(static_cast<double>(choice.rank));
  choice.dropout = section.dropout.value_or(0);
  if (section.load) {
    const AdapterFolder folder(*section.load);
    const AdapterConfig& config = folder.config();
    const auto agree = [&](const char* key, double given, double stored) {
      if (given == stored) return;
      throw Error(ErrorCode::kRecipe, cat("'lora.", key, "' is ", given, ", but the adapter ", folder.path(), " has ", stored))
          .key(cat("lora.", key))
          .suggest(cat("remove lora.", key, "; the folder determines it"));
    };
    if (section.rank) agree("rank", static_cast<double>(*section.rank), static_cast<double>(config.rank));
    if (section.alpha) agree("alpha", *section.alpha, config.alpha);
    choice.rank = config.rank;
    choice.alpha = config.alpha;
    choice.dropout = section.dropout.value_or(config.dropout);
    if (choice.match.empty()) choice.match = folder.layers();
    if (choice.train.empty()) {
      for (const OfferedTensor& tensor : folder.tensors()) {
        if (!is_adapter_tensor(tensor.name)) choice.train.push_back(tensor.name);
      }
    }
  }
  if (choice.match.empty()) {
    throw Error(ErrorCode::kRecipe, "'lora.match' selects no layers")
        .key("lora.match")
        .suggest("write selectors of linear layers, e.g. match: [\"*q_proj\", \"*v_proj\"], or type:linear for all");
  }
  return choice;
}

void resolve_lora(LoraSection& section) {
  LoraChoice choice = lora_choice(section);
  section.rank = choice.rank;
  section.alpha = choice.alpha;
  section.dropout = choice.dropout;
  section.match = std::move(choice.match);
  section.train = std::move(choice.train);
}

}  // namespace galley
