"""The names that classes and objects of a project have themselves."""

from __future__ import annotations

import ast

from mmmodernize.sites.site import ModernizeContext


class OwnMembers:
    """Methods, attributes that are assigned, and annotated fields of all modules of a project."""

    def __init__(self, context: ModernizeContext) -> None:
        self.names: set[str] = set()
        for module in context.modules.values():
            self.names |= module.methods.keys()
            self.names |= {node.attr for node in module.nodes_of(ast.Attribute) if isinstance(node.ctx, ast.Store)}
            targets = (node.target for node in module.nodes_of(ast.AnnAssign))
            self.names |= {target.id for target in targets if isinstance(target, ast.Name)}
