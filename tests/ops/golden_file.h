#pragma once
// Golden files of text: "case NAME", then arrays "NAME shape | values", made by the script beside each.

#include <map>
#include <string>

#include "libcore/backends/ref/ref.h"

namespace galley::test {

using GoldenArrays = std::map<std::string, RefArray>;

/// The cases of tests/golden/`name`.
std::map<std::string, GoldenArrays> read_golden(const std::string& name);

}  // namespace galley::test
