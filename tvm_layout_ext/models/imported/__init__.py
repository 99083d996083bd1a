"""What ``torch.export`` and its decompositions write otherwise than Relax's own modules do."""
