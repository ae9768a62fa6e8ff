"""What the report refers to, in full."""

ACERBI = (
    "Acerbi, L. (2020). Variational Bayesian Monte Carlo with noisy likelihoods. Advances in "
    "Neural Information Processing Systems 33."
)
BRADLEY = (
    "Bradley, R. A. and Terry, M. E. (1952). Rank analysis of incomplete block designs: I. The "
    "method of paired comparisons. Biometrika 39(3/4), 324–345."
)
BORDT = (
    "Bordt, S., Nori, H., Rodrigues, V., Nushi, B. and Caruana, R. (2024). Elephants never forget: "
    "memorization and learning of tabular data in large language models. Conference on Language "
    "Modeling."
)
BONNEEL = (
    "Bonneel, N., Rabin, J., Peyré, G. and Pfister, H. (2015). Sliced and Radon Wasserstein "
    "barycenters of measures. Journal of Mathematical Imaging and Vision 51(1), 22–45."
)
FISHER = "Fisher, R. A. (1935). The Design of Experiments. Oliver and Boyd."
FREEDMAN_LANE = (
    "Freedman, D. and Lane, D. (1983). A nonstochastic interpretation of reported significance "
    "levels. Journal of Business & Economic Statistics 1(4), 292–298."
)
GNEITING = (
    "Gneiting, T. and Raftery, A. E. (2007). Strictly proper scoring rules, prediction, and "
    "estimation. Journal of the American Statistical Association 102(477), 359–378."
)
HANLEY = (
    "Hanley, J. A. and McNeil, B. J. (1982). The meaning and use of the area under a receiver "
    "operating characteristic (ROC) curve. Radiology 143(1), 29–36."
)
HOLM = (
    "Holm, S. (1979). A simple sequentially rejective multiple test procedure. Scandinavian "
    "Journal of Statistics 6(2), 65–70."
)
HYNDMAN = (
    "Hyndman, R. J. (1996). Computing and graphing highest density regions. The American "
    "Statistician 50(2), 120–126."
)
KENDALL = (
    "Kendall, M. G. and Babington Smith, B. (1940). On the method of paired comparisons. "
    "Biometrika 31(3/4), 324–345."
)
LEMOS = (
    "Lemos, P. et al. (2024). PQMass: probabilistic assessment of the quality of generative models "
    "using probability mass estimation. arXiv:2402.04355."
)
LOPEZ_PAZ = (
    "Lopez-Paz, D. and Oquab, M. (2017). Revisiting classifier two-sample tests. International "
    "Conference on Learning Representations."
)
MIKKOLA = (
    "Mikkola, P., Acerbi, L. and Klami, A. (2026). Score-based density estimation from pairwise "
    "comparisons. International Conference on Learning Representations."
)
NAEINI = (
    "Naeini, M. P., Cooper, G. F. and Hauskrecht, M. (2015). Obtaining well calibrated "
    "probabilities using Bayesian binning. Proceedings of the AAAI Conference on Artificial "
    "Intelligence 29, 2901–2907."
)
OHAGAN = "O'Hagan, A. et al. (2006). Uncertain Judgements: Eliciting Experts' Probabilities. Wiley."
PITMAN = (
    "Pitman, E. J. G. (1937). Significance tests which may be applied to samples from any "
    "populations. Supplement to the Journal of the Royal Statistical Society 4(1), 119–130."
)
REQUEIMA = (
    "Requeima, J., Bronskill, J., Choi, D., Turner, R. E. and Duvenaud, D. (2024). LLM Processes: "
    "numerical predictive distributions conditioned on natural language. Advances in Neural "
    "Information Processing Systems 37."
)
STOUFFER = (
    "Stouffer, S. A., Suchman, E. A., DeVinney, L. C., Star, S. A. and Williams, R. M. (1949). The "
    "American Soldier: Adjustment During Army Life. Princeton University Press."
)
SZEKELY = (
    "Székely, G. J. and Rizzo, M. L. (2013). Energy statistics: a class of statistics based on "
    "distances. Journal of Statistical Planning and Inference 143(8), 1249–1272."
)
TVERSKY = "Tversky, A. (1969). Intransitivity of preferences. Psychological Review 76(1), 31–48."
TVERSKY_KAHNEMAN = (
    "Tversky, A. and Kahneman, D. (1983). Extensional versus intuitive reasoning: the conjunction "
    "fallacy in probability judgment. Psychological Review 90(4), 293–315."
)
VAART = "van der Vaart, A. W. (1998). Asymptotic Statistics. Cambridge University Press."
VILLANI = "Villani, C. (2009). Optimal Transport: Old and New. Springer."
WILSON = (
    "Wilson, E. B. (1927). Probable inference, the law of succession, and statistical inference. "
    "Journal of the American Statistical Association 22(158), 209–212."
)
ZOU = (
    "Zou, G. Y. (2007). Toward using confidence intervals to compare correlations. Psychological "
    "Methods 12(4), 399–413."
)
