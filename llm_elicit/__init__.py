"""What does a language model believe, as a probability density?"""
