"""GraphSAGE with the mean of the neighbours, for a graph whose nodes have features.

W. Hamilton, R. Ying and J. Leskovec, "Inductive representation learning on large graphs", NeurIPS
2017 (algorithm 1); two layers with 16 features between them and dropout 0.5, as S. Shanmugavelu
et al. train it on Cora ("Impacts of floating-point non-associativity on reproducibility for HPC
and deep learning applications", 2024, section V).
"""

from __future__ import annotations

from types import ModuleType

import flax.linen as nn
import jax.numpy as jnp
import numpy as np


def mean_of_neighbours(features, edges):
    """Of each node, the mean of the features at the other ends of the edges that lead to it.

    Args:
      features: float32 (nodes, features).
      edges: integers (2, links), from and to.

    Returns:
      float32 (nodes, features): rn(sum / count), +0 where no edge leads.  The sum is a scatter-add,
      PyTorch's ``index_add``: plain JAX adds in an order of the backend's, repjax in none.
    """
    features = jnp.asarray(features)
    start, end = edges
    sums = jnp.zeros_like(features).at[end].add(features[start])
    counts = jnp.zeros(len(features), features.dtype).at[end].add(np.float32(1))
    return sums / jnp.maximum(counts, 1)[:, None]


class SAGEConv(nn.Module):
    """W x + V m + b of a node's features x and the mean m of its neighbours.

    Attributes:
      features: of the result.
      layers: the namespace of the layers, `flax.linen` or `repjax.nn`.
    """

    features: int
    layers: ModuleType = nn

    @nn.compact
    def __call__(self, features, edges):
        glorot = nn.initializers.glorot_uniform()
        neighbours = self.layers.Dense(self.features, kernel_init=glorot, name="neighbours")
        node = self.layers.Dense(self.features, False, kernel_init=glorot, name="node")
        return neighbours(mean_of_neighbours(features, edges)) + node(features)


class GraphSAGE(nn.Module):
    """Two layers: float32 features (nodes, words) and edges to logits (nodes, classes).

    Attributes:
      classes: of the nodes.
      hidden: features between the layers.
      dropout: the share of them that is dropped while training (rng ``dropout``).
      layers: the namespace of the layers, `flax.linen` or `repjax.nn`.

    Cora's 1,433 words and 7 classes make 46,103 parameters.
    """

    classes: int = 7
    hidden: int = 16
    dropout: float = 0.5
    layers: ModuleType = nn

    @nn.compact
    def __call__(self, features, edges, train: bool = False):
        if features.ndim != 2 or features.dtype != np.float32 or edges.shape[:1] != (2,):
            raise ValueError(
                "GraphSAGE: expected float32 features (nodes, words) and edges (2, links), "
                f"received {features.dtype} of shape {features.shape} and edges of shape "
                f"{edges.shape}; convert the features to float32, and transpose the edges"
            )
        x = nn.relu(SAGEConv(self.hidden, self.layers, name="first")(features, edges))
        x = self.layers.Dropout(self.dropout, deterministic=not train)(x)
        return SAGEConv(self.classes, self.layers, name="second")(x, edges)
