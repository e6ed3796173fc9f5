#pragma once
// The adapters that a recipe's section `lora` asks for.

#include "libcore/recipe/sections.h"

namespace galley {

/// All values of the section: those given, else those of the folder that lora.load names, else defaults.
struct LoraChoice {
  int64_t rank = 8;
  double alpha = 8, dropout = 0;
  std::vector<std::string> match;  ///< Selectors of linear layers.
  std::vector<std::string> train;  ///< Selectors of parameters that are trained in full.
};

/// Throws Error (kRecipe) if the recipe contradicts the folder or selects no layers, (kInput) if the folder cannot be read.
LoraChoice lora_choice(const LoraSection& section);

/// Writes these values into the section, so that the recipe's text does not depend on the folder.
void resolve_lora(LoraSection& section);

}  // namespace galley
