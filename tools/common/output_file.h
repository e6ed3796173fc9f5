#pragma once
// Whether a tool's -o can be written, asked before the work begins.

#include <string>
#include <string_view>

namespace galley::tools {

/// `path` is what -o says, `why` what would be written ("quantization writes a file"), `example` a name for it. Throws where nothing was
/// named or a name of another format than the example (kUsage), and where there is no such folder or the path is one (kResource).
void check_output_file(const std::string& path, std::string_view why, const std::string& example);

}  // namespace galley::tools
