#pragma once
// Reads golden text files: "case NAME", then arrays "NAME shape | values". The script that made a file is in its folder.

#include <map>
#include <string>

#include "libcore/backends/ref/ref.h"

namespace galley::test {

using GoldenArrays = std::map<std::string, RefArray>;

/// The cases of tests/golden/`name`.
std::map<std::string, GoldenArrays> read_golden(const std::string& name);

}  // namespace galley::test
