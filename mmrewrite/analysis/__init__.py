"""What codemods ask about a program: loops, losses, gradients, batches, dataflow."""
