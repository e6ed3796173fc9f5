#pragma once
// What report_html puts into its page.

#include <string_view>

namespace galley {

std::string_view profile_page_body();
std::string_view profile_page_script();

}  // namespace galley
