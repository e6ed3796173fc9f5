#pragma once
// Names of parameters in older weight files.

#include <string>
#include <string_view>

namespace galley {

/// The present name of a detector's parameter that has the name of a torchvision version before 0.13: "rpn.head.conv.weight" is now
/// "rpn.head.conv.0.0.weight". Other names are returned as they are. torchvision itself decides by a version in the file, which safetensors
/// does not have.
std::string present_name(std::string_view name);

}  // namespace galley
