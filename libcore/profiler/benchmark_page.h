#pragma once
// What results_page puts into its page.

#include <string_view>

namespace galley::tools {

std::string_view results_page_body();
std::string_view results_page_script();

}  // namespace galley::tools
