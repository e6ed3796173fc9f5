#include "tools/plan/plan.h"

int main(int argc, char** argv) { return galley::tools::tool_main(argc, argv, std::make_unique<galley::tools::PlanTool>()); }
