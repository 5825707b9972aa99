"""Types of the names that `mapl` loads on first use."""

from mapl import planning
from mapl.errors import BudgetExceededError as BudgetExceededError
from mapl.errors import CertificateError as CertificateError
from mapl.errors import LedgerCorruptedError as LedgerCorruptedError
from mapl.errors import LedgerError as LedgerError
from mapl.errors import MaplError as MaplError
from mapl.errors import MechanismStateError as MechanismStateError
from mapl.errors import NotOpenError as NotOpenError
from mapl.errors import ParameterError as ParameterError
from mapl.errors import PrivacyWarning as PrivacyWarning
from mapl.errors import RequestConflictError as RequestConflictError
from mapl.errors import UnsupportedEventError as UnsupportedEventError
from mapl.estimator import PrivateClassifier as PrivateClassifier
from mapl.ledger.ledger import Ledger as Ledger
from mapl.online.panel import Panel as Panel
from mapl.privacy import accounting as accounting
from mapl.privacy import noise as noise
from mapl.privacy.answers import Answer as Answer
from mapl.privacy.answers import SoftAnswer as SoftAnswer
from mapl.privacy.charged_dissent import ChargedDissent as ChargedDissent
from mapl.privacy.noisy_max import ConfidentNoisyMax as ConfidentNoisyMax
from mapl.privacy.noisy_max import NoisyMax as NoisyMax
from mapl.privacy.sparse_vector import SparseVector as SparseVector
from mapl.privacy.stable_release import StableRelease as StableRelease
from mapl.privacy.stable_release import check_neighbours as check_neighbours
from mapl.privacy.votes import ABSTAIN as ABSTAIN
from mapl.privacy.votes import NO_VOTE as NO_VOTE
from mapl.privacy.votes import Votes as Votes
from mapl.publish import certificate as certificate
from mapl.publish.loading import load as load
from mapl.records.sources import Query as Query
from mapl.release.account import Budget as Budget
from mapl.trials import sweep as sweep

__version__: str
planner = planning
