#pragma once
// Checks that a tool's -o can be written, before the work begins.

#include <string>
#include <string_view>

namespace galley::tools {

/// `path`: value of -o; `why`: what would be written ("quantization writes a file"); `example`: an example name. Throws Error: kUsage if
/// the path is empty or has the extension of another format than the example, kResource if the folder does not exist or the path is a
/// folder.
void check_output_file(const std::string& path, std::string_view why, const std::string& example);

}  // namespace galley::tools
